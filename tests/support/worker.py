"""A job without a framework: it uses the real libsalus, and its iterations only spin for a while.

Each iteration runs inside an entry point, as iterations of a framework do: it has the lane to itself from start to end.
Run as a program. Each line on standard output is a JSON object that reports what happened and when (monotonic clock).
Standard input takes one command per line: `go` starts the loop, and end of file ends it after the current iteration.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import socket
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "nodedaemon" / "job"
LIBRARY = JOB / "libsalus" / "libsalus.so"
sys.path.insert(0, str(JOB))

from salus_job.layouts import HelloOptions  # noqa: E402

MIB = 1 << 20


def report(what: str, **fields: object) -> None:
    print(json.dumps({"what": what, "at_ns": time.monotonic_ns(), **fields}), flush=True)


def start_run(control: str, fields: dict[str, object]) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(control)
        connection.sendall(json.dumps({"verb": "run_start", **fields}).encode() + b"\n")
        with connection.makefile("r") as answers:
            return json.loads(answers.readline())


def spin_until(end_ns: int) -> None:
    while time.monotonic_ns() < end_ns:
        pass


def has_line(timeout_s: float = 0.0) -> bool:
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--no-run", action="store_true", help="the process already belongs to a job")
    parser.add_argument("--persistent", type=int, default=4, help="MiB")
    parser.add_argument("--ephemeral", type=int, default=8, help="MiB")
    parser.add_argument("--job-class", default="")
    parser.add_argument("--signature", default="")
    parser.add_argument("--remaining", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=1 << 40)
    parser.add_argument("--iteration-us", type=int, default=2000)
    parser.add_argument("--pause-us", type=int, default=0, help="idle time between iterations")
    parser.add_argument("--break-us", type=int, default=0, help="idle time inside each iteration")
    parser.add_argument("--outside", action="store_true", help="iterations outside entry points: they look idle")
    parser.add_argument("--report-starts", action="store_true", help="report the start of each iteration")
    parser.add_argument("--hello-timeout-ms", type=int, default=60_000)
    parser.add_argument("--quiet", action="store_true", help="do not report each iteration")
    parser.add_argument("--collect", action="store_true", help="report all iterations at the end")
    parser.add_argument("--uid", type=int, default=0)
    return parser.parse_args()


def join_job(arguments: argparse.Namespace) -> bool:
    """Become a job of `salus run`."""
    answer = start_run(
        arguments.control,
        {
            "name": "worker",
            "class": arguments.job_class,
            "persistent_bytes": arguments.persistent * MIB,
            "ephemeral_bytes": arguments.ephemeral * MIB,
            "remaining_s": arguments.remaining,
            "wait_ms": 60000,
            "signature": arguments.signature,
        },
    )
    report("job", **{key: answer.get(key) for key in ("ok", "why", "job", "session", "is_admitted")})
    return bool(answer["ok"])


def iterate(arguments: argparse.Namespace, library: ctypes.CDLL) -> None:
    waited_ns = ran_ns = count = 0
    is_off = False
    collected: list[dict[str, object]] = []
    while count < arguments.iterations and not (has_line() and not sys.stdin.readline()):
        before_ns = time.monotonic_ns()
        code = library.salus_boundary()
        if code >= 0 and not arguments.outside:
            # If this process was delayed since the boundary, another session may hold the lane; this call waits for it.
            code = library.salus_enter()
        start_ns = time.monotonic_ns()
        if code < 0 and not is_off:
            # It continues without lanes, as a real job does.
            is_off = True
            report("off", code=code)
        if arguments.report_starts:
            report("inside")
        spin_until(start_ns + arguments.iteration_us * 1000)
        if arguments.break_us:
            library.salus_exit()
            spin_until(time.monotonic_ns() + arguments.break_us * 1000)
            library.salus_enter()
        end_ns = time.monotonic_ns()
        if not arguments.outside:
            library.salus_exit()
        waited_ns += start_ns - before_ns
        ran_ns += end_ns - start_ns
        count += 1
        if arguments.collect:
            collected.append({"what": "iteration", "asked_ns": before_ns, "start_ns": start_ns, "end_ns": end_ns})
        elif not arguments.quiet:
            print(f'{{"what": "iteration", "number": {count}, "start_ns": {start_ns}, "end_ns": {end_ns}}}', flush=True)
        if arguments.pause_us:
            library.salus_leave()
            spin_until(time.monotonic_ns() + arguments.pause_us * 1000)
    for one in collected:
        print(json.dumps(one))
    report("done", count=count, waited_ns=waited_ns, ran_ns=ran_ns)


def open_gpu() -> ctypes.CDLL:
    """Load the CUDA part of libsalus in place of the driver, and make a context, because a session belongs to one."""
    library, context, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
    codes = [library.cuInit(0), library.cuDeviceGet(ctypes.byref(device), 0)]
    codes += [library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), library.cuCtxSetCurrent(context)]
    if any(codes):
        report("no gpu", codes=codes)
    return library


def main() -> None:
    arguments = parse_arguments()
    # Load it before the uid changes: another user cannot read a clone in root's home.
    library = None if "SALUS_TEST_GPU" in os.environ else ctypes.CDLL(str(LIBRARY))
    if arguments.uid:
        os.setresgid(arguments.uid, arguments.uid, arguments.uid)
        os.setresuid(arguments.uid, arguments.uid, arguments.uid)
    if not arguments.no_run and not join_job(arguments):
        return
    library = library or open_gpu()
    options = HelloOptions(size_bytes=ctypes.sizeof(HelloOptions), timeout_ms=arguments.hello_timeout_ms)
    report("says hello")
    report("hello", code=library.salus_hello(arguments.socket.encode(), ctypes.byref(options), None))
    if "SALUS_TEST_GPU" in os.environ:
        # On a host device the memory of the process counts as persistent. A GPU counts only what is allocated on it.
        block = ctypes.c_uint64()
        if code := library.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(arguments.persistent * MIB)):
            report("no memory", code=code)
    sys.stdin.readline()
    iterate(arguments, library)
    library.salus_bye()
    report("bye")


if __name__ == "__main__":
    main()
