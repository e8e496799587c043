"""The host device creates lanes that nobody can resize, counts what they hold, and adopts only its own lanes."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodedaemon.core.errors import OperatingError, PeerError
from nodedaemon.core.types import GRANULARITY_BYTES, MIB
from nodedaemon.drivers.host import HostDevice, anonymous_bytes, device_uuid


@pytest.fixture
def device():
    made = HostDevice("cpu0", 64 * MIB, node="n1")
    yield made
    made.close()


def test_the_uuid_is_the_same_across_restarts_and_differs_by_node_and_name():
    assert device_uuid("n1", "cpu0") == device_uuid("n1", "cpu0")
    assert len({device_uuid("n1", "cpu0"), device_uuid("n2", "cpu0"), device_uuid("n1", "cpu1")}) == 3


def test_a_lane_is_sealed_against_every_change_of_size(device):
    memory = device.open_lane(4 * MIB)
    for size in (0, 2 * MIB, 8 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)


def test_held_bytes_count_the_pages_and_a_wipe_frees_them_while_they_are_mapped(device):
    memory = device.open_lane(4 * MIB)
    assert device.held_bytes(memory) == 0
    with mmap.mmap(memory.fd, 4 * MIB) as mapped:
        mapped[: 2 * MIB] = b"x" * (2 * MIB)
        assert device.held_bytes(memory) == 2 * MIB
        assert device.wipe_lane(memory) == 0
        assert mapped[0] == 0
        mapped[0] = 1
        assert device.held_bytes(memory) > 0


def test_a_mapping_and_a_kept_descriptor_are_both_seen_in_another_process(device):
    memory = device.open_lane(2 * MIB)
    program = (
        "import mmap,os,sys\nfd=int(sys.argv[1])\nm=mmap.mmap(fd,1<<21)\nprint('mapped',flush=True)\n"
        "sys.stdin.readline()\nm.close()\nprint('unmapped',flush=True)\nsys.stdin.readline()\nos.close(fd)\n"
        "print('closed',flush=True)\nsys.stdin.readline()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(memory.fd)],
        pass_fds=[memory.fd],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        seen = []
        for _ in range(3):
            child.stdout.readline()
            seen.append(child.pid in device.find_holders(memory, [child.pid]))
            child.stdin.write("\n")
            child.stdin.flush()
        assert seen == [True, True, False]
    finally:
        child.kill()
        child.communicate()
    assert not device.find_holders(memory, [child.pid])


def test_only_the_memory_of_the_lane_is_adopted(device):
    memory = device.open_lane(2 * MIB)
    kept = os.dup(memory.fd)
    device.close_lane(memory)
    other = HostDevice("cpu0", 64 * MIB, node="n1")
    assert other.adopt_lane(kept, memory.identity, 2 * MIB).identity == memory.identity
    stranger = os.memfd_create("salus-lane-0", os.MFD_ALLOW_SEALING)
    os.ftruncate(stranger, 2 * MIB)
    with pytest.raises(PeerError):
        other.adopt_lane(stranger, f"{os.fstat(stranger).st_dev}:{os.fstat(stranger).st_ino}", 2 * MIB)
    other.close()
    # What was passed belongs to the caller still.
    os.close(kept)
    os.close(stranger)


def test_a_reading_counts_lanes_and_sessions_separately(device):
    memory = device.open_lane(2 * MIB)
    os.pwrite(memory.fd, b"x" * 4096, 0)
    reading = device.read([os.getpid(), 2**22 + 1])
    assert [process.pid for process in reading.processes] == [os.getpid()]
    assert reading.used_bytes == device.held_bytes(memory) + reading.processes[0].used_bytes


def test_a_device_without_room_for_a_lane_or_with_unavailable_cores_is_refused():
    with pytest.raises(OperatingError, match="Memory="):
        HostDevice("cpu0", GRANULARITY_BYTES - 1, node="n1")
    with pytest.raises(OperatingError, match="Cores="):
        HostDevice("cpu0", GRANULARITY_BYTES, node="n1", cores=[100_000])


def test_anonymous_bytes_are_resident_less_shared_pages_and_none_without_a_process(tmp_path):
    assert anonymous_bytes(1, tmp_path) is None
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_text("900 10 7 1 0 400 0\n")
    assert anonymous_bytes(7, tmp_path) == 3 * os.sysconf("SC_PAGE_SIZE")


def test_anonymous_bytes_are_close_to_the_kernels_own_count():
    """The heap changes between the two readings; libraries and shared memory would add tens of MiB."""
    answer = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    assert abs(anonymous_bytes(os.getpid()) - int(answer.split()[1]) * 1024) < 4 << 20
