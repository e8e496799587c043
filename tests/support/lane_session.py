"""A session without a framework, for tests of libsalus: a process that carries out commands from its standard input.

`SessionProcess` is the test's side. Run as a program, this file is the session: it reads one JSON object per line and
answers with one. It allocates and frees blocks as PyTorch's CPU allocator does.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from salus_job import binding, follower, layouts, session, watch

from tests.support.worker import JOB, ROOT, start_run

if TYPE_CHECKING:
    # The program runs without site-packages, which this would import.
    from tests.support.salusd import Salusd

MIB = 1 << 20
LIBSALUS = JOB / "libsalus"
#: The build with fault points and the switches of negative controls.
POINTS_LIBRARY = LIBSALUS / "build" / "libsalus-points.so"
#: The fault points of point.h by name.
POINTS = {
    name: number
    for number, name in enumerate(re.findall(r"^\s+POINT_(\w+),", (LIBSALUS / "point.h").read_text(), re.MULTILINE))
}
DEADLINE_S = 60.0


class SessionProcess:
    """One session process; `close` ends it if it still runs."""

    def __init__(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.support.lane_session"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{JOB}"} | environment,
        )
        self._verb = ""
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def send(self, verb: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self._verb = verb
        self.process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next answer. Fails the test at the deadline, or if the process has ended."""
        try:
            answer = self._answers.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"not within {DEADLINE_S} s: process {self.pid} answers {self._verb}") from None
        assert answer is not None, f"the session ended: {self.process.wait(DEADLINE_S)}"
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def ask(self, verb: str, **arguments: Any) -> Any:
        self.send(verb, **arguments)
        return self.answer()

    def attach(
        self,
        daemon: Salusd,
        *,
        persistent_bytes: int = 128 * MIB,
        ephemeral_bytes: int = 16 * MIB,
        account: str = "",
        job_class: str = "",
        flags: int = 0,
    ) -> None:
        """Become a job of the daemon with these sizes, and its session. Without sizes it gets the whole device."""
        run = {
            "persistent_bytes": persistent_bytes,
            "ephemeral_bytes": ephemeral_bytes,
            "account": account,
            "class": job_class,
        }
        answer = self.ask("attach", socket=str(daemon.socket), control=str(daemon.control), run=run, flags=flags)
        assert answer["error"] == 0, answer

    def wait_end(self) -> int:
        """Wait until the process has ended; returns its exit status."""
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


class SessionProgram:
    """The program's side: one method per verb, whose result is the answer."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(POINTS_LIBRARY))
        self.library.salus_block_allocate.restype = ctypes.c_void_p
        self.library.salus_block_allocate.argtypes = [ctypes.c_uint64]
        self.library.salus_block_free.argtypes = [ctypes.c_void_p]
        self.library.salus_block_free.restype = None
        self.library.salus_is_lane.argtypes = [ctypes.c_void_p]
        self.library.salus_point_passed_count.restype = ctypes.c_uint64
        self.blocks: dict[str, tuple[int, int]] = {}
        self.survivor_fill = 0
        self.thread: threading.Thread | None = None

    def pin(self) -> None:
        """Run on one CPU: the same for all sessions that are pinned."""
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def attach(self, socket: str, control: str, run: dict[str, Any], flags: int = 0) -> dict[str, Any]:
        answer = start_run(control, run)
        if not answer["ok"]:
            raise OSError(answer["why"])
        return self.hello(socket, flags)

    def hello(self, socket: str, flags: int = 0) -> dict[str, Any]:
        size_bytes = ctypes.sizeof(layouts.HelloOptions)
        options = layouts.HelloOptions(size_bytes=size_bytes, flags=flags, timeout_ms=10_000)
        view = layouts.HelloView()
        error = self.library.salus_hello(socket.encode(), ctypes.byref(options), ctypes.byref(view))
        text = ctypes.create_string_buffer(layouts.TEXT_BYTES)
        self.library.salus_reason(text, layouts.TEXT_BYTES)
        return {"error": error, "reason": text.value.decode(), "is_gated": bool(view.is_gated)}

    def enter(self) -> int:
        return int(self.library.salus_enter())

    def exit(self) -> None:
        self.library.salus_exit()

    def boundary(self) -> int:
        return int(self.library.salus_boundary())

    def boundary_in_thread(self) -> None:
        """Pass a boundary in another thread, so that this process can carry out commands meanwhile."""
        self.thread = threading.Thread(target=self.boundary, daemon=True)
        self.thread.start()

    def join_thread(self) -> bool:
        assert self.thread is not None
        self.thread.join(DEADLINE_S)
        return not self.thread.is_alive()

    def boundary_of_adaptor(self, is_delayed: bool = False) -> int:
        """Pass a boundary as the Python adaptor does. `is_delayed`: wait for a line after the call into C."""
        adaptor = session.JobSession(binding.load(str(POINTS_LIBRARY)))
        pass_boundary = adaptor._boundary

        def delay() -> int:
            answer = int(pass_boundary())
            sys.stdin.readline()
            return answer

        if is_delayed:
            adaptor._boundary = delay
        return int(adaptor.boundary())

    def follow_boundary(self) -> int:
        """Pass a boundary in libsalus, which follows the loop. 1: it left a part of the boundary to the adaptor."""
        library = binding.load(str(POINTS_LIBRARY))
        watched = watch.Watch()
        watched._use_session(session.JobSession(library))
        watched.profile._report_due_ns, watched.profile._is_model_hashed = 1 << 62, True
        watched.follower = follower.LoopFollower(library)
        watched._is_attached, watched._thread_id = True, threading.get_ident()
        watched.follower.use_thread(watched._thread_id)
        watched.follower.set_report_due(1 << 62)
        # A loop whose iterations consist of one batch each.
        watched.follower.loader_entered()
        state = library.salus_follower_state().contents
        state.keys[0], state.count, state.at = state.key, 1, 0
        if watched.follower.loader_entered():
            return 0
        assert watched.on_loader_entered()
        assert not watched.is_off
        return 1

    def delay_at(self, point: int) -> None:
        """When the point is reached next, end the open entry and wait for a line."""

        def delay() -> None:
            self.library.salus_exit()
            sys.stdin.readline()

        self.delay = ctypes.CFUNCTYPE(None)(delay)
        self.library.salus_point_call(point, self.delay)

    def leave(self) -> int:
        return int(self.library.salus_leave())

    def bye(self) -> int:
        return int(self.library.salus_bye())

    def off(self, text: str) -> int:
        return int(self.library.salus_off(text.encode()))

    def own_bytes(self) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise OSError("RssAnon: not in /proc/self/status")

    def counters(self) -> dict[str, int]:
        counters = layouts.Counters()
        self.library.salus_counters(ctypes.byref(counters))
        return {name: getattr(counters, name) for name, _ in counters._fields_}

    def allocate(self, name: str, size: int, fill: int) -> dict[str, Any]:
        """Allocate a block and fill it. The address is 0 if there is no memory."""
        address = self.library.salus_block_allocate(size) or 0
        if address:
            self.blocks[name] = (address, size)
            ctypes.memset(address, fill, size)
        return {"address": address, "is_lane": bool(address and self.library.salus_is_lane(address))}

    def free(self, name: str) -> None:
        self.library.salus_block_free(self.blocks.pop(name)[0])

    def is_filled(self, name: str, fill: int) -> bool:
        address, size = self.blocks[name]
        return ctypes.string_at(address, size) == bytes([fill]) * size

    def fill(self, name: str, fill: int) -> None:
        address, size = self.blocks[name]
        ctypes.memset(address, fill, size)

    def read_byte(self, address: int) -> int:
        return ctypes.string_at(address, 1)[0]

    def enable_faulthandler(self) -> None:
        faulthandler.enable(all_threads=False)

    def arm_point(self, point: int, nth: int) -> None:
        self.library.salus_point_arm(point, nth)

    def point_passed_count(self, point: int) -> int:
        return int(self.library.salus_point_passed_count(point))

    def run(self, count: int, block_bytes: int) -> int:
        """Run iterations that each leave one block to the next. Returns how many found that block damaged."""
        damaged_count = 0
        for index in range(count):
            if self.boundary() < 0:
                return -1
            damaged_count += self._free_survivor()
            self.survivor_fill = (os.getpid() + index) % 251 + 1
            self.allocate("survivor", block_bytes, self.survivor_fill)
            self.allocate("scratch", block_bytes, self.survivor_fill)
            self.free("scratch")
        self.leave()
        return damaged_count + self._free_survivor()

    def _free_survivor(self) -> bool:
        """Free the block that an earlier iteration left, if there is one. Returns whether it was damaged."""
        if "survivor" not in self.blocks:
            return False
        is_damaged = not self.is_filled("survivor", self.survivor_fill)
        self.free("survivor")
        return is_damaged

    def handle_signal(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: None)

    def run_until_signal(self, block_bytes: int) -> int:
        """As `run`, until SIGUSR1 arrives."""
        is_over = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: is_over.set())
        damaged_count = 0
        while not is_over.is_set():
            damaged_count += self.run(20, block_bytes)
        return damaged_count

    def use_block_in_child(self, name: str, fill: int, child_fill: int) -> dict[str, bool]:
        """A forked child reads a block, overwrites it and allocates one. `is_unchanged`: the parent sees no change."""

        def use() -> dict[str, bool]:
            is_readable = self.is_filled(name, fill)
            self.fill(name, child_fill)
            is_lane = self.allocate("child", MIB, child_fill)["is_lane"]
            return {"is_readable": is_readable, "is_private": not is_lane, "is_off": self.boundary() < 0}

        return run_in_child(use) | {"is_unchanged": self.is_filled(name, fill)}

    def attach_in_child(self, name: str, fill: int, **attach: Any) -> dict[str, bool]:
        """A forked child becomes a job of its own, and frees a block that it inherited."""

        def train() -> dict[str, bool]:
            is_attached = self.attach(**attach)["error"] == 0 and self.boundary() == 1
            is_lane = self.allocate("child", 4 * MIB, fill + 1)["is_lane"]
            is_unchanged = self.is_filled(name, fill)
            self.free(name)
            return {"is_attached": is_attached, "is_lane": is_lane, "is_unchanged": is_unchanged}

        return run_in_child(train)


def run_in_child(action: Callable[[], dict[str, bool]]) -> dict[str, bool]:
    """The result of `action` in a forked child, which ends then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(action()).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        result: dict[str, bool] = json.load(answer)
        return result


def main() -> None:
    program = SessionProgram()
    for line in sys.stdin:
        command = json.loads(line)
        verb: Callable[..., Any] = getattr(program, command.pop("verb"))
        try:
            answer = {"value": verb(**command)}
        except Exception as error:
            answer = {"error": repr(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
