"""Runs loops under the adaptor's hooks and prints, as one JSON line, what each showed. One process, since hooks stay.

A session that only counts takes the daemon's place: the position of a boundary does not depend on the daemon.
usage: python -m tests.support.loops.run known|held_out|fresh|sealed
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "nodedaemon" / "job"))

from salus_job import binding, hooks, lap
from salus_job.boundary import BoundaryRule
from salus_job.track import Track
from salus_job.watch import Numbers, Watch

from tests.support.loops.recorder import Recorder

UNMARKED = ("compile",)
NEVER_NS = 1 << 80


class CountingSession:
    """Takes the place of the session with salusd: every boundary goes to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.depth = 0

    def enter(self) -> int:
        self.depth += 1
        return 0

    def take_over(self) -> None: ...

    def leave_entry(self) -> None:
        self.depth = max(0, self.depth - 1)

    def boundary(self) -> int:
        self.recorder.fire()
        self.depth = 1
        return 0

    def persist_begin(self) -> None: ...

    def persist_end(self) -> None: ...

    def report(self, *_: Any) -> None: ...


class LoopWatch(Watch):
    """A watch that is attached to a recorder and can start afresh for the next loop.

    libsalus follows the loops that repeat themselves; boundaries are left to the watch, which tells the recorder.
    """

    def follow(self, library: Any) -> None:
        self._library = library
        self.followers = lap.make(library)
        library.salus_entry_words().contents.is_calm = 1

    def start(self, recorder: Recorder, learned: str) -> None:
        self.is_off = False
        self._is_attached = True
        self._session = CountingSession(recorder)
        self._track, self._later = Track(self._library.salus_lap_words().contents), []
        self._roots, self._optimizers = Numbers(self._track), Numbers(self._track)
        self._stepped, self._first_step = set(), None
        self._report_due_ns = NEVER_NS
        self.rule = BoundaryRule(learned)


def run_loop(watch: LoopWatch, name: str, loop: Any, learned: str) -> tuple[Recorder, str]:
    recorder = Recorder()
    gc.collect()
    torch.manual_seed(0)
    watch.start(recorder, learned)
    if any(word in name for word in UNMARKED):
        loop(recorder)
    else:
        with recorder.watching():
            loop(recorder)
    return recorder, watch.rule.learned()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    watch = LoopWatch()
    watch._torch, watch._tensor_type = torch, torch.Tensor
    watch.follow(binding.load())
    watch._attach = lambda: None  # type: ignore[method-assign]
    hooks.install(torch, watch)
    results = {}
    for name, loop in importlib.import_module(f"tests.support.loops.{sys.argv[1]}").LOOPS.items():
        began = time.monotonic()
        first, learned = run_loop(watch, name, loop, "")
        again, _ = run_loop(watch, name, loop, learned)
        results[name] = {
            "iterations": first.iteration_count,
            "boundaries": first.boundary_count,
            "middles": len(first.middles()),
            "boundaries_known": again.boundary_count,
            "middles_known": len(again.middles()),
            "learned": learned,
            "is_off": watch.is_off,
            "log": "".join({"begin": "(", "end": ")", "work": ".", "fire": "|"}[mark] for mark in first.log),
        }
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
