"""The journal of a daemon replays to the same state of engine and shell, whatever happened to the daemon."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nodedaemon.core import commands, events
from nodedaemon.core.confirmations import confirmation
from nodedaemon.core.engine import Engine
from nodedaemon.core.state.invariants import check
from nodedaemon.core.types import MIB, DeviceId, DeviceLimits, Domain, Epoch, JobClass, JobId, SessionId
from nodedaemon.service.journal.dispatcher import Dispatcher, engine_digest, replay
from nodedaemon.service.journal.segments import Journal, read_journal
from nodedaemon.service.journal.state import EndNote, MappedNote, MemoryNote, SessionNote, ShellState

DEVICE = DeviceId("HOST-1")
STEP_NAMES = (
    *("arrive", "want", "return", "late_return", "hand", "leave", "stop", "continue", "overrun", "ungate"),
    *("ungate_own", "tick", "policy"),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(STEP_NAMES),
        st.integers(1, 6),
        st.integers(0, 5),
    ),
    max_size=60,
)


class Shell:
    """Answers memory commands at once, and does to sessions what the steps say."""

    def __init__(self, directory, segment_bytes_max):
        self.now_ns = 0
        self.dispatcher = Dispatcher(ShellState(Engine()), self.clock, digest_interval_count=3)
        self.dispatcher.journal = Journal(
            directory, "0.1.0", "boot", segment_bytes_max=segment_bytes_max, segments_max=100
        )
        self.dispatcher.journal.begin(self.dispatcher.snapshot)
        self.dispatcher.executor = self
        self.dispatcher.submit(events.DeviceAdded(DEVICE, DeviceLimits(64 * MIB, lanes_max=2)))
        self.session_next = 1

    def clock(self):
        self.now_ns += 1_000_000
        return self.now_ns

    def carry_out(self, command):
        match command:
            case commands.OpenLane():
                self.dispatcher.note(MemoryNote(command.lane, command.epoch, f"memory-{command.epoch}"))
            case commands.Grant():
                self.dispatcher.note(MappedNote(command.session, command.lane, command.epoch))
        if (event := confirmation(command)) is not None:
            self.dispatcher.submit(event)

    def on_refused(self, event, error):
        """The steps are drawn at random, so the engine refuses some of them."""

    def arrive(self, size):
        session, job = SessionId(self.session_next), JobId(str(self.session_next))
        self.session_next += 1
        domain = Domain(f"user:{size % 2}")
        self.dispatcher.note(SessionNote(session, job, DEVICE, 0, 0, 0))
        self.dispatcher.submit(
            events.SessionArrived(
                session, DEVICE, job, domain, 2 * MIB, 4 * (size + 1) * MIB, JobClass(size % 3), is_placed=True
            )
        )

    def step(self, what, number, value):
        facts = self.dispatcher.state.sessions.get(SessionId(number))
        match what:
            case "arrive":
                self.arrive(value)
            case "tick":
                self.dispatcher.submit(events.Ticked(DEVICE))
            case "policy":
                policy = ("fifo", "srtf", "pack", "fair", "priority")[value % 5]
                self.dispatcher.submit(events.LimitsChanged(DEVICE, DeviceLimits(64 * MIB, lanes_max=2, policy=policy)))
            case _ if facts is not None:
                self.to_session(what, facts, value)

    def to_session(self, what, facts, value):
        session, view = facts.session, facts.view
        if what == "leave":
            self.dispatcher.note(EndNote(session, "died"))
        plain = {
            "want": events.GrantWanted(session),
            "leave": events.SessionLeft(session),
            "stop": events.SessionStopped(session),
            "continue": events.SessionContinued(session),
            "overrun": events.SessionOverran(session, 2 * MIB * value, 4 * MIB),
            "ungate": events.SessionUngated(session),
            "ungate_own": events.SessionUngated(session, has_own_memory=True),
            "late_return": events.GrantReturned(session, Epoch(value), value),
        }
        if what in plain:
            self.dispatcher.submit(plain[what])
        elif view.epoch is not None:
            offered = view.successor_epoch if what == "hand" else None
            self.dispatcher.submit(
                events.GrantReturned(session, view.epoch, value, 0, wants_next=value != 0, handed_over=offered)
            )


@given(steps=STEPS, segment_bytes_max=st.sampled_from((400, 1 << 20)))
@settings(max_examples=60, deadline=None)
def test_a_replay_gives_the_same_state(tmp_path_factory, steps, segment_bytes_max):
    directory = tmp_path_factory.mktemp("journal")
    shell = Shell(directory, segment_bytes_max)
    for step in steps:
        shell.step(*step)
        check(shell.dispatcher.engine)
    shell.dispatcher.journal.close()
    results = [replay(segment) for segment in read_journal(directory)]
    assert sum(result.mismatch_count for result in results) == 0
    last = results[-1]
    check(last.engine)
    assert engine_digest(last.engine) == engine_digest(shell.dispatcher.engine)
    assert last.state.encode() == shell.dispatcher.state.encode()
