"""The session of the self-test: imports a lane from an inherited descriptor, prints its first word and overwrites it.

    python -sP -m nodedaemon.drivers.probe cuda|host FD BYTES WORD

WORD is the number to write. After a line on standard input, the probe unmaps the lane, prints `gone` and waits for the
end of the input.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from functools import partial

from nodedaemon.drivers.cuda import DriverError, checked, load_driver, map_memory

Unmap = Callable[[], None]


def touch_cuda(fd: int, size_bytes: int, word: int) -> tuple[int, Unmap]:
    driver = load_driver()
    ok = partial(checked, driver)
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    handle = ok(driver.cuMemImportFromShareableHandle(fd, kind))
    os.close(fd)
    address = ok(driver.cuMemAddressReserve(size_bytes, 0, 0, 0))
    map_memory(driver, handle, address, size_bytes, 0)
    ok(driver.cuMemRelease(handle))
    seen = ctypes.c_uint32()
    ok(driver.cuMemcpyDtoH(ctypes.addressof(seen), address, 4))
    ok(driver.cuMemsetD32(address, word, size_bytes // 4))
    ok(driver.cuCtxSynchronize())
    return seen.value, lambda: ok(driver.cuMemUnmap(address, size_bytes))


def touch_host(fd: int, size_bytes: int, word: int) -> tuple[int, Unmap]:
    lane = mmap.mmap(fd, size_bytes)
    os.close(fd)
    seen = int.from_bytes(lane[:4], "little")
    lane[:4] = word.to_bytes(4, "little")
    return seen, lane.close


def main(kind: str, fd: str, size_bytes: str, word: str) -> int:
    touch = touch_cuda if kind == "cuda" else touch_host
    try:
        seen, unmap = touch(int(fd), int(size_bytes), int(word))
        print(seen, flush=True)
        sys.stdin.readline()
        unmap()
    except DriverError as error:
        raise SystemExit(f"salus: probe: {error}") from error
    print("gone", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
