"""The speed of iterations that run on one device at the same time.

By default they share the throughput of the device without gain: each of k iterations runs at 1/k of its speed. That is
conservative, because measured pairs often do better. `--pair-speed` reads such measurements. With more than two at
once, the delays that the others cause add up. This gives 1/k again if every pair runs at one half.

A job that starts up on the device's own cores, as on a host device, takes a share too. It has a weight of its own,
because the operating system schedules it there, not a lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Work is counted in this many units per nanosecond, so that the rates of up to 16 jobs at once are integers.
WORK_SCALE = 720_720_000
#: A pair that was not measured shares the device without gain.
PAIR_SPEED_DEFAULT = 0.5


class Speeds:
    """The rates of work of jobs that are busy at the same time."""

    def __init__(self, pair_speeds: Mapping[tuple[str, str], float] | None = None) -> None:
        self._pair_speeds = pair_speeds

    def rates(self, models: Sequence[str]) -> list[int]:
        """Units of work that each of `models` does in a nanosecond while all of them run."""
        count = len(models)
        if count <= 1 or not self._pair_speeds:
            return [WORK_SCALE // max(count, 1)] * count
        return [self._rate(number, models) for number in range(count)]

    def rates_beside(self, models: Sequence[str], starter_count: int, weight: float) -> tuple[list[int], int]:
        """Rates of running iterations next to jobs that start up, and the rate of each job that starts up."""
        rates = self.rates(models)
        if not starter_count:
            return rates, 0
        whole = len(rates) + weight * starter_count
        starter_rate = max(1, int(WORK_SCALE * weight / whole))
        return [max(1, int(rate * len(rates) / whole)) for rate in rates], starter_rate

    def _rate(self, number: int, models: Sequence[str]) -> int:
        assert self._pair_speeds is not None
        slowdown = 1.0
        for other, model in enumerate(models):
            if other != number:
                slowdown += 1.0 / self._pair_speeds.get((models[number], model), PAIR_SPEED_DEFAULT) - 1.0
        return max(1, int(WORK_SCALE / slowdown))
