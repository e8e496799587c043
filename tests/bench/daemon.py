"""What salusd costs: hand-overs through the whole stack, an idle daemon, and growth with the number of sessions.

Prints progress on standard error and one JSON line last. Both sides of each comparison come from this run: the bare
futex ping-pong is between two processes on the same cores.
"""

from __future__ import annotations

import bisect
import ctypes
import json
import mmap
import os
import socket
import statistics
import struct
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import itertools

from tests.support.idle_sessions import IdleSessions
from tests.support.salusd import Salusd, wait_until
from tests.support.workers import Crew, Worker

#: Iterations of each side. Each is long enough for salusd to name the successor meanwhile, as any real iteration is.
ROUNDS = 1000
WORK_US = 2000
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
_libc = ctypes.CDLL(None, use_errno=True)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def spin(us: int) -> None:
    end_ns = time.monotonic_ns() + us * 1000
    while time.monotonic_ns() < end_ns:
        pass


def futex_rounds(count: int, work_us: int) -> list[int]:
    """Wake-up times of a bare futex between two processes that take turns and work as long as a job does.

    The work matters: a waiter that has slept for a turn takes longer to wake, in either stack.
    """
    page = mmap.mmap(-1, 4096)
    anchor = (ctypes.c_char * 4096).from_buffer(page)
    base = ctypes.addressof(anchor)
    reader, writer = os.pipe()

    def wait(offset: int, seen: int) -> int:
        while struct.unpack_from("I", page, offset)[0] == seen:
            _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(base + offset), 0, seen, None, None, 0)
        # The other side wrote the time just before it called wake.
        return time.monotonic_ns() - struct.unpack_from("Q", page, offset + 8)[0]

    def wake(offset: int, value: int) -> None:
        struct.pack_into("Q", page, offset + 8, time.monotonic_ns())
        struct.pack_into("I", page, offset, value)
        _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(base + offset), 1, 1, None, None, 0)

    child = os.fork()
    if child == 0:
        waits_ns = []
        for number in range(count):
            waits_ns.append(wait(0, number))
            spin(work_us)
            wake(64, number + 1)
        os.write(writer, json.dumps(waits_ns).encode())
        os._exit(0)
    waits_ns = []
    for number in range(count):
        spin(work_us)
        wake(0, number + 1)
        waits_ns.append(wait(64, number))
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        waits_ns += json.loads(answers.read())
    os.waitpid(child, 0)
    return waits_ns


def handover_gaps(workers: list[Worker]) -> list[int]:
    """The times from one worker's boundary to the start of the other's iteration, one for each change of turn."""
    spans = sorted(
        (one["start_ns"], one["asked_ns"], index) for index, w in enumerate(workers) for one in w.iterations()
    )
    boundaries = [sorted(one["asked_ns"] for one in w.iterations()) for w in workers]
    gaps = []
    for earlier, later in itertools.pairwise(spans):
        if earlier[2] == later[2]:
            continue
        # The holder handed over at its next boundary after its last start; the other was already waiting.
        asked = boundaries[earlier[2]]
        place = bisect.bisect_right(asked, earlier[0])
        if place < len(asked) and later[1] < asked[place] < later[0]:
            gaps.append(later[0] - asked[place])
    return gaps


def measure_handover() -> dict[str, float]:
    with Salusd(config="MaxLanes=1\nPolicy=fair\nSampleInterval=5\nLedgerInterval=5") as daemon:
        crew = Crew(daemon)
        try:
            workers = [
                crew.start(iteration_us=WORK_US, iterations=ROUNDS, collect=True, outside=True) for _ in range(2)
            ]
            crew.ready()
            for worker in workers:
                worker.go()
            for worker in workers:
                worker.finish()
            gaps = handover_gaps(workers)
        finally:
            crew.close()
    return {"n": len(gaps), "iterations": 2 * ROUNDS, "median_us": statistics.median(gaps) / 1000}


def ping_ms(daemon: Salusd, count: int) -> list[float]:
    answer_ms = []
    for _ in range(count):
        start_ns = time.monotonic_ns()
        daemon.ask("ping")
        answer_ms.append((time.monotonic_ns() - start_ns) / 1e6)
    return answer_ms


def measure_noise(count: int) -> dict[str, float]:
    """Answer times of a good client, alone and while another sends only malformed frames."""
    with Salusd(config="UserRequests=1000000") as daemon:
        ping_ms(daemon, 50)
        quiet = ping_ms(daemon, count)
        is_over = threading.Event()

        def flood() -> None:
            while not is_over.is_set():
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                    peer.connect(str(daemon.socket))
                    peer.send(b"malformed")
                    peer.recv(16)

        thread = threading.Thread(target=flood)
        thread.start()
        noisy = ping_ms(daemon, count)
        is_over.set()
        thread.join()
    return {"quiet_ms": round(statistics.median(quiet), 3), "noisy_ms": round(statistics.median(noisy), 3)}


def cpu_ns(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def measure_sessions(counts: tuple[int, ...], idle_seconds: float) -> list[dict[str, float]]:
    """What idle sessions cost: memory, processor time, and the time of a status request."""
    results = []
    with Salusd(
        memory="4G", config="UserSessions=1000\nUserRequests=100000\nSampleInterval=5\nLedgerInterval=5"
    ) as daemon:
        held, total = ExitStack(), 0
        with held:
            for count in counts:
                start_ns = time.monotonic_ns()
                held.enter_context(IdleSessions(daemon, count - total))
                attach_ms = (time.monotonic_ns() - start_ns) / 1e6 / max(1, count - total)
                total = count
                wait_until(
                    lambda count=count: len(daemon.status()["sessions"]) == count, "all are there", daemon.log_tail
                )
                # The first batch also opens the database; an idle daemon has done that.
                wait_until(
                    lambda: daemon.status()["daemon"]["spool_records"] == 0, "records are written", daemon.log_tail
                )
                before_ns, start_ns = cpu_ns(daemon.process.pid), time.monotonic_ns()
                time.sleep(idle_seconds)
                used = (cpu_ns(daemon.process.pid) - before_ns) / (time.monotonic_ns() - start_ns)
                answers = []
                for _ in range(9):
                    asked_ns = time.monotonic_ns()
                    daemon.status()
                    answers.append((time.monotonic_ns() - asked_ns) / 1e6)
                pings = ping_ms(daemon, 50)
                status = Path(f"/proc/{daemon.process.pid}/status").read_text()
                resident_kib = int(status.split("VmRSS:")[1].split()[0])
                results.append(
                    {
                        "sessions": count,
                        "idle_core_percent": round(used * 100, 3),
                        "attach_ms": round(attach_ms, 2),
                        "ping_ms": round(statistics.median(pings), 3),
                        "status_ms": round(statistics.median(answers), 2),
                        "resident_mib": round(resident_kib / 1024, 1),
                    }
                )
                progress(f"sessions: {results[-1]}")
    return results


def main() -> None:
    counts = tuple(int(one) for one in sys.argv[1].split(",")) if len(sys.argv) > 1 else (0, 10, 200)
    futex = futex_rounds(ROUNDS, WORK_US)
    progress(f"futex: median {statistics.median(futex) / 1000:.1f} us one way, n={len(futex)}")
    handover = measure_handover()
    progress(f"hand-over: {handover}")
    noise = measure_noise(300)
    progress(f"ping: {noise}")
    sessions = measure_sessions(counts, 10.0)
    bare_us = statistics.median(futex) / 1000
    print(
        json.dumps(
            {
                "bench": "daemon",
                "n": handover["n"],
                "futex_median_us": round(bare_us, 1),
                "handover_median_us": round(handover["median_us"], 1),
                "ratio": round(handover["median_us"] / bare_us, 2),
                "ping": noise,
                "sessions": sessions,
            }
        )
    )


if __name__ == "__main__":
    main()
