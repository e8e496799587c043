"""The cycle in which several optimizers step. Boundaries lie only where it closes.

A generator's graph lives across the discriminator's step, so no single step ends an iteration. Like boundary.py, this
uses no framework, no clock and no randomness.
"""

from typing import List, Optional, Set

CYCLE_LENGTH_MAX = 32
# After this many steps, optimizers that have not stepped are ignored.
STEPS_BEFORE_GIVING_UP = 32
MISSES_BEFORE_RELEARNING = 4


class StepCycle:
    """Learns the cycle from the start of the job, and follows it afterwards."""

    def __init__(self, cycle: Optional[List[int]] = None) -> None:
        self.cycle = list(cycle or [])
        # The last cycle, also after its optimizers are gone.
        self.last_cycle = self.cycle
        self.alive: Set[int] = set()
        self._history: List[int] = []
        self._missed: List[int] = []
        self._matched = 0
        self._is_exact = bool(cycle)

    def step(self, optimizer: int) -> None:
        if self.cycle == [optimizer]:
            self._is_exact = True
            self._missed.clear()
        elif self.cycle:
            self._follow(optimizer)
        else:
            self._history.append(optimizer)
            self._learn()

    def drop(self, optimizer: int) -> None:
        """An optimizer is gone. If none of the cycle is left, the job uses others (a search over models)."""
        self.alive.discard(optimizer)
        if self.cycle and not self.alive.intersection(self.cycle):
            self.cycle, self._history, self._missed, self._matched = [], [], [], 0

    def _learn(self) -> None:
        is_late = len(self._history) >= STEPS_BEFORE_GIVING_UP
        needed = set(self._history) if is_late else self.alive | set(self._history)
        for length in range(1, min(CYCLE_LENGTH_MAX, len(self._history) // 2) + 1):
            block = self._history[-length:]
            is_repeated = len(self._history) % length == 0 and block == self._history[-2 * length : -length]
            if is_repeated and needed <= set(block):
                self.cycle = self.last_cycle = block
                self._matched, self._is_exact, self._missed = 0, True, []
                return
        if len(self._history) >= 2 * CYCLE_LENGTH_MAX:
            del self._history[:CYCLE_LENGTH_MAX]

    def _follow(self, optimizer: int) -> None:
        self._missed.append(optimizer)
        if optimizer == self.cycle[self._matched]:
            self._matched = (self._matched + 1) % len(self.cycle)
            self._is_exact = self._matched == 0
            if self._is_exact:
                self._missed.clear()
            return
        # A skipped step (AMP): continue from the longest tail of the steps that is a prefix of the cycle.
        seen = [*self.cycle[: self._matched], optimizer]
        self._is_exact = False
        self._matched = next(n for n in range(len(seen) - 1, -1, -1) if n == 0 or seen[-n:] == self.cycle[:n])
        if len(self._missed) >= 2 * len(self.cycle) + MISSES_BEFORE_RELEARNING:
            # Another phase of the job, with other optimizers. It began where the cycle was last closed.
            self.alive = set(self._missed)
            self.cycle, self._history, self._missed, self._matched = [], self._missed, [], 0
            self._learn()

    @property
    def is_closed(self) -> bool:
        if not self.cycle:
            return len(self.alive.union(self._history)) <= 1
        return self._matched == 0 and self._is_exact
