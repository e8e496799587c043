"""A session without a framework, for tests of libsalus: a process that does what lines of JSON on its input say.

`SessionProcess` is the test's side; run as a program, this file is the session. Blocks are taken and given as libc10
does it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBSALUS = Path(__file__).parents[2] / "nodedaemon" / "job" / "libsalus"
DEADLINE_S = 20.0

Figures = dict[str, int]


class SessionProcess:
    """One session process; ended at the latest by `close`."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def send(self, verb: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next answer; fails the test at the deadline or when the process is gone."""
        answer = self._answers.get(timeout=DEADLINE_S)
        assert answer is not None, f"the session ended: {self.process.wait(DEADLINE_S)}"
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def ask(self, verb: str, **arguments: Any) -> Any:
        self.send(verb, **arguments)
        return self.answer()

    def wait_end(self) -> int:
        """How the process ended; it may still answer before."""
        self._reader.join(DEADLINE_S)
        assert not self._reader.is_alive(), f"not within {DEADLINE_S} s: the session ends"
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def read_own_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("RssAnon: not in /proc/self/status")


def layouts() -> Any:
    """The structures of libsalus; this program runs without the test runner's import path."""
    if str(LIBSALUS.parent) not in sys.path:
        sys.path.insert(0, str(LIBSALUS.parent))
    return importlib.import_module("salus_job.layouts")


class _Session:
    """The program's side: one method per verb; its value is the answer."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(LIBSALUS / "build" / "libsalus-points.so"))
        self.library.salus_block_allocate.restype = ctypes.c_void_p
        self.library.salus_block_allocate.argtypes = [ctypes.c_uint64]
        self.library.salus_block_free.argtypes = [ctypes.c_void_p]
        self.library.salus_block_free.restype = None
        self.library.salus_is_lane.argtypes = [ctypes.c_void_p]
        self.blocks: dict[str, tuple[int, int]] = {}
        self.thread: threading.Thread | None = None

    def pin(self) -> None:
        """To one CPU, the same for all who ask."""
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def hello(self, path: str, flags: int = 0) -> list[Any]:
        """Answer, reason, session, whether it is gated."""
        size_bytes = ctypes.sizeof(layouts().HelloOptions)
        options = layouts().HelloOptions(size_bytes=size_bytes, flags=flags, timeout_ms=10_000)
        view = layouts().HelloView()
        answer = self.library.salus_hello(path.encode(), ctypes.byref(options), ctypes.byref(view))
        text = ctypes.create_string_buffer(layouts().TEXT_BYTES)
        self.library.salus_reason(text, layouts().TEXT_BYTES)
        return [answer, text.value.decode(), view.session, view.is_gated]

    def enter(self) -> int:
        return int(self.library.salus_enter())

    def exit(self) -> None:
        self.library.salus_exit()

    def boundary(self) -> int:
        return int(self.library.salus_boundary())

    def boundary_of_adaptor(self, is_held_up: bool = False) -> int:
        """As the adaptor for Python passes it; `is_held_up`: after the call into C not before the next line comes."""
        sys.path.insert(0, str(LIBSALUS.parent))
        adaptor = importlib.import_module("salus_job.session").JobSession(
            importlib.import_module("salus_job.binding").load(self.library._name)
        )
        pass_boundary = adaptor._boundary

        def hold_up() -> int:
            answer = int(pass_boundary())
            sys.stdin.readline()
            return answer

        if is_held_up:
            adaptor._boundary = hold_up
        return int(adaptor.boundary())

    def follow_boundary(self) -> int:
        """A boundary that libsalus passes while it follows a loop. 1: it left a part of it to the adaptor."""
        sys.path.insert(0, str(LIBSALUS.parent))
        from salus_job import binding, follower, session, watch

        library = binding.load(self.library._name)
        watching = watch.Watch()
        watching._use_session(session.JobSession(library))
        watching.profile._report_due_ns, watching.profile._is_model_hashed = 1 << 62, True
        watching.follower = follower.LoopFollower(library)
        watching._is_attached, watching._thread_id = True, threading.get_ident()
        watching.follower.use_thread(watching._thread_id)
        watching.follower.set_report_due(1 << 62)
        # A loop whose iterations are one batch each.
        watching.follower.loader_entered()
        state = library.salus_follower_state().contents
        state.keys[0], state.count, state.at = state.key, 1, 0
        if watching.follower.loader_entered():
            return 0
        assert watching.on_loader_entered()
        assert not watching.is_off
        return 1

    def hold_at(self, point: int) -> None:
        """Whoever comes to the point next, its entry over by then, goes on when the next line comes."""

        def hold() -> None:
            self.library.salus_exit()
            sys.stdin.readline()

        self.hold = ctypes.CFUNCTYPE(None)(hold)
        self.library.salus_point_call(point, self.hold)

    def boundary_elsewhere(self) -> None:
        """On a thread of its own, so that this one can look around meanwhile."""
        self.thread = threading.Thread(target=self.boundary, daemon=True)
        self.thread.start()

    def join(self) -> bool:
        assert self.thread is not None
        self.thread.join(DEADLINE_S)
        return not self.thread.is_alive()

    def leave(self) -> int:
        return int(self.library.salus_leave())

    def bye(self) -> int:
        return int(self.library.salus_bye())

    def off(self, text: str) -> int:
        return int(self.library.salus_off(text.encode()))

    def own_bytes(self) -> int:
        return read_own_bytes()

    def figures(self) -> Figures:
        counters = layouts().Counters()
        self.library.salus_counters(ctypes.byref(counters))
        return {name: getattr(counters, name) for name, _ in counters._fields_}

    def take(self, name: str, size: int, fill: int) -> list[Any]:
        """Address (0: none) and whether it lies in the lane."""
        address = self.library.salus_block_allocate(size) or 0
        if address:
            self.blocks[name] = (address, size)
            ctypes.memset(address, fill, size)
        return [address, bool(address and self.library.salus_is_lane(address))]

    def give(self, name: str) -> None:
        self.library.salus_block_free(self.blocks.pop(name)[0])

    def is_filled(self, name: str, fill: int) -> bool:
        address, size = self.blocks[name]
        return ctypes.string_at(address, size) == bytes([fill]) * size

    def fill(self, name: str, fill: int) -> None:
        ctypes.memset(*self.blocks[name][:1], fill, self.blocks[name][1])

    def peek(self, address: int) -> int:
        return ctypes.string_at(address, 1)[0]

    def enable_faulthandler(self) -> None:
        faulthandler.enable(all_threads=False)

    def arm_point(self, point: int, nth: int) -> None:
        self.library.salus_point_arm(point, nth)

    def run(self, count: int, block_bytes: int) -> int:
        """Iterations that check a survivor of the last one; how many found it damaged."""
        wrong_count = 0
        survivor: tuple[str, int] | None = None
        for index in range(count):
            if self.boundary() < 0:
                return -1
            if survivor is not None:
                wrong_count += not self.is_filled(*survivor)
                self.give(survivor[0])
            fill = (os.getpid() + index) % 251 + 1
            survivor = (f"run {index}", fill)
            self.take(survivor[0], block_bytes, fill)
            self.take("scratch", block_bytes, fill)
            self.give("scratch")
        self.leave()
        return wrong_count

    def watch_signal(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: None)

    def run_until_told(self, block_bytes: int) -> int:
        """As `run`, until SIGUSR1."""
        is_told = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: is_told.set())
        wrong_count = 0
        while not is_told.is_set():
            wrong_count += self.run(20, block_bytes)
        return wrong_count

    def run_forked(self, name: str, fill: int, other: int) -> list[bool]:
        """A forked child looks at a block, writes to it and makes its own: what it saw, and what we see afterwards."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            has_seen = self.is_filled(name, fill)
            self.fill(name, other)
            _, is_lane = self.take("of the child", 1 << 20, other)
            is_off = self.boundary() < 0
            os.write(writer, bytes([has_seen, not is_lane, is_off]))
            os._exit(0)
        os.close(writer)
        seen = [bool(value) for value in os.read(reader, 8)]
        os.close(reader)
        os.waitpid(child, 0)
        return [*seen, self.is_filled(name, fill)]

    def train_in_child(self, path: str, name: str, fill: int) -> list[bool]:
        """A forked trainer says hello itself: attached, in the lane, with the inherited block untouched."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            is_attached = self.hello(path)[0] == 0 and self.boundary() == 1
            _, is_lane = self.take("of the child", 4 << 20, fill + 1)
            is_kept = self.is_filled(name, fill)
            self.give(name)
            os.write(writer, bytes([is_attached, is_lane, is_kept]))
            os._exit(0)
        os.close(writer)
        seen = [bool(value) for value in os.read(reader, 8)]
        os.close(reader)
        os.waitpid(child, 0)
        return seen


def main() -> None:
    session = _Session()
    for line in sys.stdin:
        order = json.loads(line)
        verb: Callable[..., Any] = getattr(session, order.pop("verb"))
        try:
            answer = {"value": verb(**order)}
        except Exception as error:
            answer = {"error": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
