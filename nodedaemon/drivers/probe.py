"""A session's part of the self-test: imports a lane from an inherited descriptor, says what it found, writes its word.

    python -m nodedaemon.drivers.probe cuda|host FD BYTES WORD

Prints the word that it found; after a line on standard input it lets go, prints `gone` and waits for the end of input.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

from nodedaemon.drivers.cuda import load_driver

Let = Callable[[], None]


def _ok(driver: Any, answer: tuple[Any, ...]) -> Any:
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"salus: probe: {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


def touch_cuda(fd: int, size_bytes: int, word: int) -> tuple[int, Let]:
    driver = load_driver()
    _ok(
        driver, driver.cuCtxSetCurrent(_ok(driver, driver.cuDevicePrimaryCtxRetain(_ok(driver, driver.cuDeviceGet(0)))))
    )
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = _ok(driver, driver.cuMemImportFromShareableHandle(fd, kind))
    os.close(fd)
    address = _ok(driver, driver.cuMemAddressReserve(size_bytes, 0, 0, 0))
    _ok(driver, driver.cuMemMap(address, size_bytes, 0, handle, 0))
    _ok(driver, driver.cuMemRelease(handle))
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    _ok(driver, driver.cuMemSetAccess(address, size_bytes, [access], 1))
    seen = ctypes.c_uint32()
    _ok(driver, driver.cuMemcpyDtoH(ctypes.addressof(seen), address, 4))
    _ok(driver, driver.cuMemsetD32(address, word, size_bytes // 4))
    _ok(driver, driver.cuCtxSynchronize())
    return seen.value, lambda: _ok(driver, driver.cuMemUnmap(address, size_bytes))


def touch_host(fd: int, size_bytes: int, word: int) -> tuple[int, Let]:
    lane = mmap.mmap(fd, size_bytes)
    os.close(fd)
    seen = int.from_bytes(lane[:4], "little")
    lane[:4] = word.to_bytes(4, "little")
    return seen, lane.close


def main(kind: str, fd: str, size_bytes: str, word: str) -> int:
    touch = touch_cuda if kind == "cuda" else touch_host
    seen, let_go = touch(int(fd), int(size_bytes), int(word))
    print(seen, flush=True)
    sys.stdin.readline()
    let_go()
    print("gone", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
