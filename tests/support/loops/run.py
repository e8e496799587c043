"""Runs one set of loops under the adaptor's hooks, which cannot be removed, and prints the results as a line of JSON.

A recorder takes the place of the daemon: the position of a boundary does not depend on it.
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

from salus_job import binding
from salus_job.boundary import BoundaryRule
from salus_job.follower import LoopFollower
from salus_job.frameworks.torch.adaptor import TorchAdaptor
from salus_job.object_numbers import ObjectNumbers
from salus_job.watch import Watch

from tests.support.loops.recorder import Recorder

UNMARKED = ("compile",)
NEVER_NS = 1 << 80


class RecordingSession:
    """Takes the place of the session with salusd: every boundary goes to the recorder."""

    cap_bytes = 0

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def enter(self) -> int:
        return 0

    def change_thread(self) -> None: ...

    def leave_entry(self) -> None: ...

    def boundary(self) -> int:
        self.recorder.fire()
        return 0

    def persist_begin(self) -> None: ...

    def persist_end(self) -> None: ...

    def report(self, *_: Any) -> None: ...


class RecordedWatch(Watch):
    """A watch that reports to a recorder and can start again for the next loop.

    libsalus follows loops that repeat themselves. A report is always due, so it leaves every boundary to the watch,
    which passes it to the recorder.
    """

    def __init__(self, adaptor: TorchAdaptor) -> None:
        super().__init__()
        self._adaptor = adaptor
        self._library = binding.load()
        self._library.salus_entry_words().contents.is_fast_path = 1
        self.follower = LoopFollower(self._library)
        adaptor.install_hooks(self)

    def start(self, recorder: Recorder, learned: str) -> None:
        self.is_off = False
        self._is_attached = True
        self._use_session(RecordingSession(recorder))  # type: ignore[arg-type]
        self.profile._report_due_ns = NEVER_NS
        self.follower, self._postponed = LoopFollower(self._library), []
        self.follower.set_report_due = lambda _: None  # type: ignore[method-assign]
        self._roots, self._optimizers = ObjectNumbers(self._on_object_gone), ObjectNumbers(self._on_object_gone)
        self._stepped, self._first_step = set(), None
        self.rule = BoundaryRule(learned)

    def _attach(self) -> None: ...


def run_loop(watch: RecordedWatch, name: str, loop: Any, learned: str) -> tuple[Recorder, str]:
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
    watch = RecordedWatch(TorchAdaptor(torch))
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
