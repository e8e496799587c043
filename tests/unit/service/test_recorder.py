"""Usage records: the profile of a job with several sessions, and the iterations of each grant."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from accounting.records import MeasurementRecord, UsageRecord
from nodedaemon.core.commands import Grant, OpenLane, Revoke
from nodedaemon.core.engine import Engine
from nodedaemon.core.events import (
    DeviceAdded,
    GrantReturned,
    GrantWanted,
    LaneOpened,
    SessionArrived,
    SessionLeft,
    SessionUngated,
    Ticked,
)
from nodedaemon.core.state.sessions import Session, SessionState
from nodedaemon.core.types import MIB, SECOND_NS, DeviceId, DeviceLimits, Domain, JobClass, JobId, SessionId
from nodedaemon.service.control.metrics import EventMetrics
from nodedaemon.service.journal.dispatcher import Dispatcher
from nodedaemon.service.journal.state import JobFacts, JobNote, ProcessFacts, SessionFacts, SessionNote, ShellState
from nodedaemon.service.node import NodeClock, NodeIdentity
from nodedaemon.service.sessions.roster import LiveSession
from nodedaemon.service.usage.recorder import PROFILE_INTERVAL_NS, UsageRecorder
from nodedaemon.wire.messages import ProfileReport

DEVICE = DeviceId("HOST-1")
COUNTERS = (
    "salus_iterations_total",
    "salus_lane_busy_seconds_total",
    "salus_handovers_total",
    "salus_iteration_wait_seconds_count",
)


def record_state(state, records, clock):
    device = SimpleNamespace(uuid=DEVICE, model="m", index=0, usable_bytes=1 << 30)
    node = NodeIdentity("n", "c", "0", "b", "i", NodeClock(clock, lambda: 2))
    ledger = SimpleNamespace(record=records.append, flush_soon=lambda: None)
    recorder = UsageRecorder(node, state, {DEVICE: device}, ledger)
    recorder.start()
    return recorder


def make_recorder(records):
    state = ShellState(Engine())
    state.jobs[JobId("7")] = JobFacts(JobId("7"), 7, 1000, signature="sig", device=DEVICE)
    for number in (1, 2):
        session = SessionId(number)
        view = Session(session, JobId("7"), Domain("user:ada"), 0, 0, JobClass.NORMAL, 1, None, number)
        state.sessions[session] = SessionFacts(
            view, session, JobId("7"), DEVICE, 1000, process=ProcessFacts(number, number)
        )
    return state, record_state(state, records, lambda: PROFILE_INTERVAL_NS + 1)


def measured(recorder, state, number, profile):
    recorder.on_profile(LiveSession(SessionId(number)), state.sessions[SessionId(number)], profile)


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


def test_a_session_that_left_is_no_longer_counted():
    records = []
    state, recorder = make_recorder(records)
    measured(recorder, state, 1, ProfileReport(100, 30, 90, 20))
    state.sessions[SessionId(1)].view.state = SessionState.LEAVING
    recorder.watch(SessionLeft(SessionId(1)), [], 3)
    measured(recorder, state, 2, ProfileReport(50, 7, 40, 5))
    assert sizes(records) == (50, 7, 40, 5)


def test_a_profile_reports_nothing_that_the_device_and_the_time_rule_out():
    records = []
    state, recorder = make_recorder(records)
    del state.sessions[SessionId(2)]
    huge = 2**64 - 1
    measured(recorder, state, 1, ProfileReport(huge, huge, huge, huge, iteration_ns=huge, iteration_count=huge))
    found = [one for one in records if isinstance(one, MeasurementRecord)][-1]
    assert sizes(records) == (1 << 30,) * 4
    assert (found.solo_iteration_ns, found.iteration_count) == (None, (PROFILE_INTERVAL_NS + 1) // 1000 + 1)
    # As long as the session has lived is possible.
    measured(recorder, state, 1, ProfileReport(1, 1, 1, 1, iteration_ns=PROFILE_INTERVAL_NS + 1, iteration_count=1))
    found = [one for one in records if isinstance(one, MeasurementRecord)][-1]
    assert (found.solo_iteration_ns, found.iteration_count) == (PROFILE_INTERVAL_NS + 1, 1)


def end_with(recorder, state, number, **fields):
    """A session has these values when its process ends."""
    facts, live = state.sessions[SessionId(number)], LiveSession(SessionId(number))
    live.own_bytes_max = fields.pop("own_bytes_max", 0)
    for name, value in fields.items():
        setattr(facts.view, name, value)
    recorder.record_profile(live, facts)


CHARGED = {"persistent_bytes": 10, "ephemeral_bytes": 20, "charged_persistent_bytes": 10, "charged_ephemeral_bytes": 20}


@pytest.mark.parametrize(
    ("fields", "recorded"),
    [
        pytest.param(CHARGED | {"persistent_bytes": 300}, (300, 20), id="an allowed overrun"),
        pytest.param(CHARGED | {"ephemeral_bytes": 400}, (0, 400), id="a larger lane"),
        pytest.param(CHARGED | {"own_bytes_max": 50}, (50, 20), id="a reading"),
        pytest.param(
            CHARGED | {"persistent_bytes": 30, "ephemeral_bytes": 0, "own_bytes_max": 55}, (35, 20), id="without a gate"
        ),
    ],
)
def test_a_session_above_its_charge_is_measured_even_if_it_reports_nothing(fields, recorded):
    records = []
    state, recorder = make_recorder(records)
    end_with(recorder, state, 1, **fields)
    assert sizes(records)[:2] == recorded


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(CHARGED | {"own_bytes_max": 10}, id="within the charge"),
        pytest.param(CHARGED | {"persistent_bytes": 30, "ephemeral_bytes": 0}, id="without a gate"),
        pytest.param({"persistent_bytes": 30, "own_bytes_max": 30}, id="a further session of the job"),
    ],
)
def test_a_session_within_its_charge_that_reports_nothing_is_not_measured(fields):
    records = []
    state, recorder = make_recorder(records)
    end_with(recorder, state, 1, **fields)
    assert not any(isinstance(one, MeasurementRecord) for one in records)


def test_a_report_below_an_allowed_overrun_is_raised_to_it():
    records = []
    state, recorder = make_recorder(records)
    measured(recorder, state, 1, ProfileReport(1, 1, 1, 1))
    assert sizes(records) == (1, 1, 1, 1)
    end_with(recorder, state, 1, **CHARGED | {"persistent_bytes": 300, "ephemeral_bytes": 400})
    assert sizes(records) == (300, 400, 1, 1)
    measured(recorder, state, 1, ProfileReport(2, 2, 2, 2))
    assert sizes(records) == (300, 400, 2, 2)


class GrantedAtOnce:
    """Opens lanes at once and remembers the epoch of every grant, and the last revoke that names a successor."""

    def __init__(self, dispatcher):
        self.dispatcher = dispatcher
        self.epochs = []
        self.revoke = None

    def carry_out(self, command):
        if isinstance(command, OpenLane):
            self.dispatcher.submit(LaneOpened(command.lane, command.epoch))
        elif isinstance(command, Grant):
            self.epochs.append(command.epoch)
        elif isinstance(command, Revoke) and command.successor is not None:
            self.revoke = command


class ManualClock:
    def __init__(self):
        self.now_ns = 1

    def __call__(self):
        return self.now_ns


def arrive(dispatcher, number):
    session, job = SessionId(number), JobId(str(number))
    dispatcher.note(JobNote(JobFacts(job, number, 1000)))
    dispatcher.note(SessionNote(session, job, DEVICE, 1000, 0, 0))
    dispatcher.submit(SessionArrived(session, DEVICE, job, Domain("all"), MIB, 40 * MIB, JobClass.NORMAL, 1, None))
    return session


def test_a_session_that_its_predecessor_started_counts_as_running():
    records, clock = [], ManualClock()
    state = ShellState(Engine())
    dispatcher, registry = Dispatcher(state, clock), CollectorRegistry()
    recorder = record_state(state, records, clock)
    dispatcher.observers = [recorder, EventMetrics(state, registry)]
    dispatcher.executor = executor = GrantedAtOnce(dispatcher)
    dispatcher.submit(DeviceAdded(DEVICE, DeviceLimits(64 * MIB, policy="fair")))
    holder, other = arrive(dispatcher, 1), arrive(dispatcher, 2)
    dispatcher.submit(GrantWanted(holder))
    dispatcher.submit(GrantWanted(other))
    epoch = executor.epochs[-1]
    # Each turn ends with a direct hand-over after a second.
    for _ in range(4):
        clock.now_ns += SECOND_NS
        dispatcher.submit(Ticked(DEVICE))
        revoke = executor.revoke
        assert (revoke.session, revoke.epoch, revoke.successor) == (holder, epoch, other)
        dispatcher.submit(GrantReturned(holder, epoch, 1, 1, wants_next=True, handed_over=revoke.successor_epoch))
        holder, other, epoch = other, holder, revoke.successor_epoch
    assert len(executor.epochs) == 1, "only the first grant came from the engine"
    recorder.close_interval()
    usage = {one.job.job_id: one for one in records if isinstance(one, UsageRecord)}
    assert {job: (one.running_ns, one.wait_ns) for job, one in usage.items()} == {
        1: (2 * SECOND_NS, 2 * SECOND_NS),
        2: (2 * SECOND_NS, 2 * SECOND_NS),
    }
    counted = {name: registry.get_sample_value(name, {"uuid": DEVICE}) for name in COUNTERS}
    assert counted == dict(zip(COUNTERS, (4, 4, 4, 5), strict=True))


def test_frames_that_the_engine_ignores_count_nothing():
    records, clock = [], ManualClock()
    state = ShellState(Engine())
    dispatcher, registry = Dispatcher(state, clock), CollectorRegistry()
    recorder = record_state(state, records, clock)
    dispatcher.observers = [recorder, EventMetrics(state, registry)]
    dispatcher.executor = executor = GrantedAtOnce(dispatcher)
    dispatcher.submit(DeviceAdded(DEVICE, DeviceLimits(64 * MIB)))
    session = arrive(dispatcher, 1)
    dispatcher.submit(GrantWanted(session))
    dispatcher.submit(SessionUngated(session))
    assert len(executor.epochs) == 2, "it keeps its lane under a new epoch"
    for _ in range(3):
        clock.now_ns += SECOND_NS
        dispatcher.submit(GrantReturned(session, executor.epochs[-1], 10**6))
        dispatcher.submit(GrantWanted(session))
    recorder.close_interval()
    (usage,) = [one for one in records if isinstance(one, UsageRecord)]
    assert (usage.running_ns, usage.wait_ns, usage.iteration_count) == (3 * SECOND_NS, 0, 0)
    counted = [registry.get_sample_value(name, {"uuid": DEVICE}) for name in COUNTERS]
    assert counted == [None, None, None, 1]


def test_the_iterations_of_a_grant_count_if_its_session_is_granted_again_at_once():
    records, session = [], SessionId(1)
    clock = iter(range(1, 1000)).__next__
    state = ShellState(Engine())
    dispatcher = Dispatcher(state, clock)
    recorder = record_state(state, records, clock)
    dispatcher.observers = [recorder]
    dispatcher.executor = executor = GrantedAtOnce(dispatcher)
    dispatcher.submit(DeviceAdded(DEVICE, DeviceLimits(64 * MIB)))
    dispatcher.note(JobNote(JobFacts(JobId("7"), 7, 1000)))
    dispatcher.note(SessionNote(session, JobId("7"), DEVICE, 1000, 0, 0))
    dispatcher.submit(SessionArrived(session, DEVICE, JobId("7"), Domain("all"), MIB, MIB, JobClass.NORMAL, 1, None))
    dispatcher.submit(GrantWanted(session))
    for _ in range(3):
        dispatcher.submit(GrantReturned(session, executor.epochs[-1], 5, wants_next=True))
    # The engine ignores a late return, and so do the records.
    dispatcher.submit(GrantReturned(session, executor.epochs[0], 5, wants_next=True))
    assert len(executor.epochs) == 4
    recorder.close_interval()
    assert [one.iteration_count for one in records if isinstance(one, UsageRecord)] == [15]
