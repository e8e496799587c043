"""A session that does nothing keeps no other session waiting, and asks for the lane again when it continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from nodedaemon.core.events import GrantReturned
from nodedaemon.service.sessions.gate_memory import GatePage, GateReading
from nodedaemon.wire.pages import GateState
from tests.support.lane_session import MIB, POINTS, SessionProcess
from tests.support.one_lane import OneLaneDaemon, open_gate_page
from tests.support.salusd import wait_until

StartSession = Callable[..., SessionProcess]


class Observed:
    """A session whose gate page the test reads."""

    def __init__(self, daemon: OneLaneDaemon, process: SessionProcess) -> None:
        self.daemon = daemon
        self.process = process
        self.page: GatePage = open_gate_page(process.pid)
        self.ask, self.send, self.answer = process.ask, process.send, process.answer

    def read(self) -> GateReading:
        return self.page.read()

    def wait_idle(self) -> None:
        wait_until(lambda: self.read().state is GateState.IDLE, "the session is idle", self.daemon.describe)

    def lose_lane_to(self, peer: SessionProcess) -> None:
        """Wait until the session is idle; then the peer takes the lane from it."""
        self.wait_idle()
        assert peer.ask("enter") == 1
        assert self.read().state is GateState.REVOKED

    def regain_lane_from(self, peer: SessionProcess) -> None:
        """The session waits for the lane; then the peer leaves it."""
        self.daemon.wait_state(self.process.pid, "waiting")
        peer.ask("leave")
        assert self.answer() == 1


@pytest.fixture
def daemon(request: pytest.FixtureRequest, one_lane: Callable[..., OneLaneDaemon]) -> OneLaneDaemon:
    """A daemon whose sessions are idle after 4 ms without activity, or after the time that the test names."""
    return one_lane(IdleRelease=getattr(request, "param", "4ms"))


@pytest.fixture
def observed(daemon: OneLaneDaemon, start_session: StartSession) -> Iterator[Observed]:
    session = Observed(daemon, start_session(daemon))
    yield session
    session.page.close()


@pytest.fixture
def peer(daemon: OneLaneDaemon, start_session: StartSession) -> SessionProcess:
    return start_session(daemon, job_class="high")


def test_an_idle_holder_loses_the_lane_without_a_boundary_and_keeps_its_blocks(
    observed: Observed, peer: SessionProcess
) -> None:
    assert observed.ask("enter") == 1
    observed.ask("allocate", name="kept", size=MIB, fill=5)
    observed.ask("exit")
    observed.lose_lane_to(peer)
    peer.ask("allocate", name="all", size=15 * MIB, fill=99)
    assert observed.ask("is_filled", name="kept", fill=5)
    observed.send("enter")
    observed.regain_lane_from(peer)
    assert observed.ask("is_filled", name="kept", fill=5)


def test_an_idle_holder_continues_under_its_lease_if_nobody_waits(daemon: OneLaneDaemon, observed: Observed) -> None:
    observed.ask("enter")
    observed.ask("exit")
    observed.wait_idle()
    assert observed.ask("enter") == 0
    assert observed.read().state is GateState.RUNNING
    assert not daemon.events(GrantReturned, daemon.session(observed.process.pid)["session"])
    assert observed.ask("allocate", name="next", size=MIB, fill=1)["is_lane"]


def test_a_session_in_a_long_entry_is_not_idle(observed: Observed, peer: SessionProcess) -> None:
    observed.ask("enter")
    peer.send("enter")
    observed.daemon.wait_state(peer.pid, "waiting")
    # libsalus checks for idleness every millisecond: often, while these commands are carried out.
    for _ in range(200):
        observed.ask("own_bytes")
    assert observed.read().state is GateState.RUNNING
    observed.ask("exit")
    assert peer.answer() == 1


def test_a_session_that_passed_the_boundary_of_the_adaptor_is_not_idle(observed: Observed) -> None:
    assert observed.ask("boundary_of_adaptor") >= 0
    for _ in range(200):
        observed.ask("own_bytes")
    assert observed.read().state is GateState.RUNNING


def test_a_session_that_is_delayed_between_boundary_and_entry_asks_for_the_lane_again(
    observed: Observed, peer: SessionProcess
) -> None:
    """In the adaptor the entry begins after the boundary: between the two, the session looks idle."""
    assert observed.ask("boundary_of_adaptor") >= 0
    observed.send("boundary_of_adaptor", is_delayed=True)
    observed.lose_lane_to(peer)
    observed.send("continue")
    observed.regain_lane_from(peer)
    assert observed.read().state is GateState.RUNNING


@pytest.mark.parametrize(("point", "counts"), [("BEFORE_COUNT", (1, 1)), ("COUNT_STORED", (2, 0))])
def test_a_session_that_is_delayed_in_a_boundary_of_libsalus_asks_again_and_counts_it_once(
    observed: Observed, peer: SessionProcess, point: str, counts: tuple[int, int]
) -> None:
    """`counts` are the iterations of the grant that was taken back, and of the next grant."""
    assert observed.ask("boundary_of_adaptor") >= 0
    observed.ask("delay_at", point=POINTS[point])
    observed.send("follow_boundary")
    observed.lose_lane_to(peer)
    observed.send("continue")
    observed.regain_lane_from(peer)
    reading = observed.read()
    assert reading.state is GateState.RUNNING
    assert (reading.returned_count, reading.started_count) == counts
    assert observed.ask("counters")["iteration_count"] == 2


def test_libsalus_passes_an_uncontended_boundary_alone(observed: Observed) -> None:
    assert observed.ask("boundary_of_adaptor") >= 0
    assert observed.ask("follow_boundary") == 0
    assert observed.ask("counters")["iteration_count"] == 2


# Long enough for the test to act on a session that runs outside an entry.
@pytest.mark.parametrize("daemon", ["300ms"], indirect=True)
@pytest.mark.parametrize("verb", ["enter", "boundary"])
def test_an_interrupted_iteration_is_counted_once(observed: Observed, peer: SessionProcess, verb: str) -> None:
    is_boundary = verb == "boundary"
    assert observed.ask("enter") == 1
    observed.ask("exit")
    observed.lose_lane_to(peer)
    observed.send(verb)
    observed.regain_lane_from(peer)
    # An open entry is not idle.
    observed.ask("enter")
    reading = observed.read()
    assert (reading.returned_count, reading.started_count) == (1, int(is_boundary))
    assert observed.ask("counters")["iteration_count"] == 1 + is_boundary
    peer.send("boundary")
    observed.daemon.wait_state(observed.process.pid, "revoked")
    observed.send("boundary")
    assert peer.answer() == 1
    peer.ask("leave")
    assert observed.answer() == 1
    assert observed.read().returned_count == int(is_boundary)
    assert observed.ask("counters")["iteration_count"] == 2 + is_boundary
