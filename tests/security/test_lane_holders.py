"""Lane memory that an attacker keeps: it is never given to anybody else, and the attacker's process is ended.

The attacker holds 40 MiB of a device of 64 MiB, and a good user needs 40 MiB.
"""

import contextlib
import json
import uuid

import pytest

from nodedaemon.drivers.process import read_stat
from tests.support.attacker import ATTACKER, ATTACKERS, start_attack
from tests.support.device_kind import IS_CUDA
from tests.support.salusd import wait_until

pytestmark = pytest.mark.skipif(IS_CUDA, reason="a rogue maps a lane as a file of this machine")

CONFIG = "MaxLanes=1\nHangTimeout=1\nOnHang=kill\nDomainQuantum=1ms\nSampleInterval=100ms\nLogFormat=json\n"
IMPATIENT, PATIENT = f"{CONFIG}UnmapTimeout=300ms", f"{CONFIG}UnmapTimeout=1:00:00"

#: A process without a session: it receives the lane at an abstract address, fills it, and keeps it until end of input.
HELPER = """
import mmap, os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind("\\0" + sys.argv[1])
    listener.listen()
    print("ready", flush=True)
    giver, _ = listener.accept()
_, (lane,), _, _ = socket.recv_fds(giver, 1, 1)
size = os.fstat(lane).st_size
mapped = mmap.mmap(lane, size)
mapped[:] = bytes(range(256)) * (size // 256)
giver.send(b".")
sys.stdin.read()
"""


@pytest.fixture
def start_helper():
    """A function that starts a helper of a user; returns it with its address."""
    with contextlib.ExitStack() as helpers:

        def start(uid):
            address = f"salus-{uuid.uuid4()}"
            helper = helpers.enter_context(start_attack(HELPER, address, uid=uid))
            helpers.callback(helper.kill)
            assert helper.stdout.readline() == "ready\n"
            return helper, address

        yield start


def hold_lane(rogue, daemon, **options):
    bad = rogue(daemon, uid=ATTACKER, persistent=4, ephemeral=40, **options)
    bad.do("run")
    assert bad.do("hello")["kind"] == "WELCOME"
    bad.do("want")
    assert bad.do("map_lane")["bytes"] >= 40 << 20
    return bad


def start_good(daemon, crew):
    good = crew(daemon).start(iteration_us=500, persistent=4, ephemeral=40)
    good.wait_report("hello")
    good.go()
    return good


def wait_kept(daemon, good):
    """Wait until the lane is being released, and the good user still has no memory."""

    def find():
        assert not good.iteration_count, "the memory was given away"
        return [lane for lane in daemon.status()["lanes"] if lane["state"] == "releasing"]

    wait_until(find, "the lane is being released", daemon.log_tail)
    assert daemon.status()["devices"][0]["lane_bytes"] >= 40 << 20, "its bytes are counted"


def reports(daemon):
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if "without a session keeps" in line["event"]]


def test_a_process_without_its_main_thread_keeps_its_lane(salusd, crew, rogue):
    daemon = salusd(memory="64M", config=PATIENT)
    bad = hold_lane(rogue, daemon)
    bad.do("lie_leave")
    bad.do("end_main_thread")
    wait_until(lambda: read_stat(bad.process.pid).state == "Z", "the main thread has ended")
    bad.do("scribble")
    good = start_good(daemon, crew)
    wait_kept(daemon, good)
    bad.do("scribble")
    wait_kept(daemon, good)
    assert not bad.is_gone()
    bad.close()
    good.wait_iterations(10)


def test_a_process_without_its_main_thread_is_ended_if_it_does_not_unmap(salusd, crew, rogue):
    daemon = salusd(memory="64M", config=IMPATIENT)
    bad = hold_lane(rogue, daemon)
    bad.do("lie_leave")
    bad.do("end_main_thread")
    good = start_good(daemon, crew)
    wait_until(bad.is_gone, "it is ended", daemon.log_tail)
    good.wait_iterations(10)


def test_a_process_without_its_main_thread_keeps_its_session_when_it_disconnects(salusd, crew, rogue):
    daemon = salusd(memory="64M", config=PATIENT)
    bad = hold_lane(rogue, daemon)
    bad.do("end_main_thread")
    wait_until(lambda: read_stat(bad.process.pid).state == "Z", "the main thread has ended")
    bad.do("disconnect")
    good = start_good(daemon, crew)
    daemon.wait_for(lambda status: len(status["sessions"]) == 2, "both have a session")
    daemon.wait_for(lambda status: not all(one["is_connected"] for one in status["sessions"]), "it is disconnected")
    bad.do("scribble")
    assert not good.iteration_count
    assert len(daemon.status()["sessions"]) == 2
    bad.close()
    good.wait_iterations(10)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_mapped_file_whose_name_is_not_text_does_not_keep_a_lane(salusd, crew, rogue, is_kept):
    daemon = salusd(memory="64M", config=IMPATIENT)
    bad = hold_lane(rogue, daemon)
    bad.do("map_odd_file")
    bad.do("lie_leave")
    if not is_kept:
        bad.do("drop_lane")
    good = start_good(daemon, crew)
    good.wait_iterations(10)
    if is_kept:
        wait_until(bad.is_gone, "it is ended, because it still maps the lane", daemon.log_tail)


def test_a_helper_of_the_same_user_that_got_the_lane_is_ended(salusd, crew, rogue, start_helper):
    daemon = salusd(memory="64M", config=IMPATIENT)
    helper, address = start_helper(ATTACKER)
    bad = hold_lane(rogue, daemon)
    bad.do("give_lane", address=address)
    bad.do("lie_leave")
    bad.do("drop_lane")
    good = start_good(daemon, crew)
    wait_until(lambda: helper.poll() is not None, "the helper is ended", daemon.log_tail)
    good.wait_iterations(10)
    assert {(line["pid"], line["uid"]) for line in reports(daemon)} == {(helper.pid, ATTACKER)}


def test_a_helper_that_outlives_its_session_is_ended(salusd, crew, rogue, start_helper):
    daemon = salusd(memory="64M", config=IMPATIENT)
    helper, address = start_helper(ATTACKER)
    bad = hold_lane(rogue, daemon)
    bad.do("give_lane", address=address)
    bad.close()
    wait_until(lambda: helper.poll() is not None, "the helper is ended", daemon.log_tail)
    start_good(daemon, crew).wait_iterations(10)


def test_a_forked_child_that_keeps_the_mapping_is_ended(salusd, crew, rogue):
    daemon = salusd(memory="64M", config=IMPATIENT)
    bad = hold_lane(rogue, daemon)
    child = bad.do("fork_helper")["pid"]
    start_ticks = read_stat(child).start_ticks
    bad.close()
    good = start_good(daemon, crew)

    def is_gone():
        stat = read_stat(child)
        return stat is None or stat.start_ticks != start_ticks or stat.state == "Z"

    wait_until(is_gone, "the child is ended", daemon.log_tail)
    good.wait_iterations(10)


def test_a_process_of_another_user_is_reported_and_its_memory_stays_counted(salusd, crew, rogue, start_helper):
    """It may have received the descriptor without asking for it, so it is not ended."""
    daemon = salusd(memory="64M", config=IMPATIENT)
    other = ATTACKERS[1]
    helper, address = start_helper(other)
    bad = hold_lane(rogue, daemon)
    bad.do("give_lane", address=address)
    bad.close()
    good = start_good(daemon, crew)
    wait_kept(daemon, good)
    processes = daemon.wait_for(lambda status: [one for lane in status["lanes"] for one in lane["kept_by"]], "a report")
    assert [process["pid"] for process in processes] == [helper.pid]
    wait_until(lambda: reports(daemon), "the log names it", daemon.log_tail)
    assert {(line["pid"], line["uid"], line["is_ended"]) for line in reports(daemon)} == {(helper.pid, other, False)}
    wait_kept(daemon, good)
    assert helper.poll() is None
    helper.stdin.close()
    good.wait_iterations(10)


def test_a_descriptor_that_is_hidden_in_a_socket_is_reported_and_its_memory_stays_counted(salusd, crew, rogue):
    daemon = salusd(memory="64M", config=IMPATIENT)
    bad = hold_lane(rogue, daemon)
    bad.do("hide_lane")
    bad.do("lie_leave")
    good = start_good(daemon, crew)
    bad.do("answer_unmap")
    wait_until(lambda: reports(daemon), "the log says that nobody is found", daemon.log_tail)
    assert [(line["pid"], line["is_ended"]) for line in reports(daemon)] == [(0, False)]
    wait_kept(daemon, good)
    bad.close()
    good.wait_iterations(10)


def test_a_session_that_never_reads_the_frame_with_its_lane_is_ended(salusd, crew, rogue):
    daemon = salusd(memory="64M", config=IMPATIENT)
    bad = rogue(daemon, uid=ATTACKER, persistent=4, ephemeral=40)
    bad.do("run")
    bad.do("hello")
    bad.do("want")
    daemon.wait_for(lambda status: status["lanes"] and status["lanes"][0]["holder"], "it holds the lane")
    bad.do("lie_leave")
    good = start_good(daemon, crew)
    wait_until(bad.is_gone, "it is ended", daemon.log_tail)
    good.wait_iterations(10)
