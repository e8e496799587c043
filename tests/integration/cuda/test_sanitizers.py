"""The CUDA part of libsalus, built with ASan and UBSan: three processes share one lane of an emulated GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.cuda_node import LIBSALUS, CudaNode

SOURCE = Path(__file__).with_name("exercise.c")
# A sanitizer cannot be loaded into a running Python: the job executes the program, without the preloaded library.
BECOME = """
import os, sys
del os.environ["LD_PRELOAD"]
os.environ["UBSAN_OPTIONS"] = "print_stacktrace=1"
# The emulated driver and the context keep memory until the end.
os.environ["ASAN_OPTIONS"] = "detect_leaks=0"
os.execv(sys.argv[1], [sys.argv[1], os.environ["SALUS_SOCKET"], sys.argv[2]])
"""


def build(directory: Path) -> Path:
    program, library = directory / "exercise", LIBSALUS / "build/cuda-asan/libcuda.so.1"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread", "-fsanitize=address,undefined"]
    places = [f"-I{LIBSALUS}", f"-I{LIBSALUS / 'build'}", f"-Wl,-rpath,{library.parent}"]
    # The emulator's folder, first in LD_LIBRARY_PATH, holds a libcuda.so.1 as well: this one is found by rpath only.
    places += ["-Wl,--disable-new-dtags"]
    subprocess.run(["gcc", *flags, "-o", program, SOURCE, library, *places], check=True)
    return program


def test_the_sanitizers_report_nothing_and_all_data_is_correct(tmp_path: Path) -> None:
    with CudaNode("tiny-1g", "MaxLanes=1") as node:
        program = build(tmp_path)
        jobs = [node.job(str(program), "40", program=("-c", BECOME), persistent_mib=160) for _ in range(3)]
        outcomes = [(job.communicate(timeout=120)[1], job.returncode) for job in jobs]
    assert outcomes == [("", 0)] * 3
