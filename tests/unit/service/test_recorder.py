"""Records of a job with several sessions: its profile is what they hold together."""

from types import SimpleNamespace

from accounting.records import MeasurementRecord
from nodedaemon.core.engine import Engine
from nodedaemon.core.events import SessionLeft
from nodedaemon.core.sessions import Session, SessionState
from nodedaemon.core.types import DeviceId, Domain, JobClass, JobId, SessionId
from nodedaemon.service.journal.state import JobFacts, ProcessFacts, SessionFacts, ShellState
from nodedaemon.service.node import NodeClock, NodeIdentity
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.usage.recorder import PROFILE_INTERVAL_NS, UsageRecorder
from nodedaemon.wire.messages import ProfileReport

DEVICE = DeviceId("HOST-1")


def make_recorder(records):
    state = ShellState(Engine())
    state.jobs[JobId("7")] = JobFacts(JobId("7"), 7, 1000, signature="sig", device=DEVICE)
    for number in (1, 2):
        session = SessionId(number)
        view = Session(session, JobId("7"), Domain("user:ada"), 0, 0, JobClass.NORMAL, 1, None, number, 0)
        state.sessions[session] = SessionFacts(
            view, session, JobId("7"), DEVICE, 1000, process=ProcessFacts(number, number)
        )
    device = SimpleNamespace(uuid=DEVICE, model="m", index=0, usable_bytes=1 << 30)
    clock = NodeClock(lambda: PROFILE_INTERVAL_NS + 1, lambda: 2)
    node = NodeIdentity("n", "c", "0", "b", "i", clock)
    ledger = SimpleNamespace(record=records.append, flush_soon=lambda: None)
    recorder = UsageRecorder(node, state, {DEVICE: device}, ledger, log=None)
    recorder.start()
    return state, recorder


def measured(recorder, state, number, profile):
    recorder.take_profile(LiveSession(SessionId(number)), state.sessions[SessionId(number)], profile)


def sizes(records):
    found = [one for one in records if isinstance(one, MeasurementRecord)][-1]
    return found.persistent_bytes, found.ephemeral_bytes, found.live_persistent_bytes, found.live_ephemeral_bytes


def test_the_profile_of_a_job_is_the_sum_over_its_live_sessions():
    records = []
    state, recorder = make_recorder(records)
    measured(recorder, state, 1, ProfileReport(100, 30, 90, 20))
    assert sizes(records) == (100, 30, 90, 20)
    measured(recorder, state, 2, ProfileReport(50, 7, 40, 5))
    assert sizes(records) == (150, 37, 130, 25)


def test_a_session_that_left_is_not_counted_any_more():
    records = []
    state, recorder = make_recorder(records)
    measured(recorder, state, 1, ProfileReport(100, 30, 90, 20))
    state.sessions[SessionId(1)].view.state = SessionState.LEAVING
    recorder.watch(SessionLeft(SessionId(1)), [], 3)
    measured(recorder, state, 2, ProfileReport(50, 7, 40, 5))
    assert sizes(records) == (50, 7, 40, 5)
