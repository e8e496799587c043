"""`salus doctor --selftest`: tests lanes, hand-over and faults on the devices of this node with its own processes.

It skips a device that other processes use, and reports that as a note, not as a failure.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nodedaemon.config import Config
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.core.types import MIB
from nodedaemon.drivers.device import DeviceDriver, LaneMemory
from nodedaemon.service.checks.doctor import Diagnosis, Level
from nodedaemon.service.devices.discovery import make_devices
from nodedaemon.wire.trust import OWN_IMPORTS, own_module

LANE_BYTES = 64 * MIB
DEADLINE_S = 30.0
FIRST_WORD, SECOND_WORD = 0x5A1A5001, 0x5A1A5002


class SelftestError(Exception):
    """A step failed; the text says which step and how."""


def run_selftest(config: Config, node: str) -> tuple[Diagnosis, ...]:
    try:
        devices = make_devices(config, node)
    except SalusError as error:
        return (Diagnosis("selftest", Level.FAILURE, str(error), "fix the findings above first"),)
    found: list[Diagnosis] = []
    for device in devices.values():
        try:
            found.append(_test(device))
        except (SelftestError, SalusError) as error:
            advice = "do not configure this device in Salus; report the output of salus doctor --json"
            found.append(Diagnosis("selftest", Level.FAILURE, f"{device.name}: {error}", advice))
        finally:
            device.close()
    return tuple(found)


def _test(device: DeviceDriver) -> Diagnosis:
    others = [process.pid for process in device.read(()).processes if process.pid != os.getpid()]
    if others:
        seen = f"{device.name}: in use by {len(others)} processes: not tested"
        return Diagnosis("selftest", Level.NOTE, seen, "drain the device, then run it again")
    start_s = time.monotonic()
    _test_hand_over(device)
    _test_death(device)
    _test_refusal(device)
    seconds = time.monotonic() - start_s
    seen = f"{device.name}: lanes, hand-over, process death and refusal tested in {seconds:.1f} s"
    return Diagnosis("selftest", Level.OK, seen)


def _test_hand_over(device: DeviceDriver) -> None:
    """Two sessions use a lane in turn; after its release the next lane is empty."""
    with _lane(device) as lane:
        with _session(device, lane, FIRST_WORD) as first:
            _expect(_read_line(first), "0", "a new lane holds zeroes")
            with _session(device, lane, SECOND_WORD) as second:
                _expect(_read_line(second), str(FIRST_WORD), "the successor sees the same memory")
                _unmap(second)
            _unmap(first)
            _expect(len(device.find_holders(lane, [first.pid])), 0, "/proc shows that a session unmapped the lane")
        _release(device, lane)
    with _lane(device) as lane:
        with _session(device, lane, FIRST_WORD) as third:
            _expect(_read_line(third), "0", "a lane for the next domain holds zeroes")
            _unmap(third)
        _release(device, lane)


def _test_death(device: DeviceDriver) -> None:
    """Memory of a session that was killed while it mapped the lane becomes free."""
    with _lane(device) as lane:
        with _session(device, lane, FIRST_WORD) as victim:
            _read_line(victim)
            victim.kill()
            victim.wait(DEADLINE_S)
        _release(device, lane)


def _test_refusal(device: DeviceDriver) -> None:
    if not device.capabilities.bounds_lanes:
        return
    try:
        lane = device.open_lane(device.total_bytes // device.granularity_bytes * device.granularity_bytes * 2)
    except OperatingError:
        return
    device.close_lane(lane)
    raise SelftestError("a lane of twice the device's size was opened")


@contextmanager
def _lane(device: DeviceDriver) -> Iterator[LaneMemory]:
    lane = device.open_lane(LANE_BYTES)
    try:
        yield lane
    finally:
        device.close_lane(lane)


@contextmanager
def _session(device: DeviceDriver, lane: LaneMemory, word: int) -> Iterator[subprocess.Popen[str]]:
    fd = device.share_lane(lane)
    command = own_module("nodedaemon.drivers.probe", device.kind, str(fd), str(lane.size_bytes), str(word))
    environment = {**os.environ, **OWN_IMPORTS, **device.visible_as(device.uuid)}
    process = subprocess.Popen(  # noqa: S603 - our own module
        command, pass_fds=[fd], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    os.close(fd)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _unmap(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    _expect(_read_line(process), "gone", "a session unmaps the lane when asked")


def _release(device: DeviceDriver, lane: LaneMemory) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while device.wipe_lane(lane):
        if time.monotonic() > end_s:
            raise SelftestError(f"{lane.size_bytes} bytes of a released lane were not freed within {DEADLINE_S:g} s")
        time.sleep(0.02)
    _expect(device.held_bytes(lane), 0, "a released lane holds nothing")


def _expect(seen: object, wanted: object, claim: str) -> None:
    if seen != wanted:
        raise SelftestError(f"check failed: {claim}: expected {wanted}, got {seen}")
