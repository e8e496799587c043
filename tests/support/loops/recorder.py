"""Records the true iterations of a loop beside the boundaries that the adaptor finds.

A boundary lies in the middle of an iteration if work of that iteration (a forward, a backward, a step) began before it
and more began after it. Torch's own hooks record the work, independently of the adaptor. A loop that torch.compile
traces marks its work itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class Recorder:
    def __init__(self) -> None:
        self.log: list[str] = []

    def begin(self) -> None:
        self.log.append("begin")

    def end(self) -> None:
        self.log.append("end")

    def work(self) -> None:
        self.log.append("work")

    def fire(self) -> None:
        self.log.append("fire")

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        self.begin()
        yield
        self.end()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Marks the work of everything that runs inside."""
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def mark(*_: Any) -> None:
            self.work()

        plain = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.work()
            return plain(*args, **kwargs)

        handles = [register_module_forward_pre_hook(mark), register_optimizer_step_pre_hook(mark)]
        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = plain
            for handle in handles:
                handle.remove()

    @property
    def iteration_count(self) -> int:
        return self.log.count("begin")

    @property
    def boundary_count(self) -> int:
        return self.log.count("fire")

    def middles(self) -> list[int]:
        """Positions in the log of the boundaries that lie in the middle of an iteration."""
        found: list[int] = []
        begun_at = -1
        for at, mark in enumerate(self.log):
            if mark == "begin":
                begun_at = at
            elif mark == "end":
                begun_at = -1
            elif mark == "fire" and begun_at >= 0:
                end_at = self.log.index("end", at)
                if "work" in self.log[begun_at:at] and "work" in self.log[at:end_at]:
                    found.append(at)
        return found
