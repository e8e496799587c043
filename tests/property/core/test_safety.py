"""The memory rule holds after every event, whatever happens and whatever the policy says.

A state machine feeds random events in random order, and answers late and out of order. After each event, `World.send`
checks every invariant and the bytes that are really held.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from nodedaemon.core import events as ev
from nodedaemon.core.engine import Engine
from nodedaemon.core.memory import charge_units, device_units
from nodedaemon.core.ordering import Breadth, Waiting
from nodedaemon.core.policies import POLICIES, make_policy
from nodedaemon.core.state.lanes import Device, Lane
from nodedaemon.core.state.sessions import SessionState
from nodedaemon.core.types import MIB, DeviceLimits, Domain, FaultAction, JobClass, SessionId
from tests.support.engine_world import DEVICE, World

CAPACITY_MIB = 1024
UNIT_BYTES = 16 * MIB


class Hostile:
    """A policy with invalid answers: wrong types, exceptions, and another order each time it is called."""

    breadth = Breadth.ALL

    def __init__(self, breadth: Breadth = Breadth.ALL) -> None:
        self.breadth = breadth
        self._call_count = 0

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:
        self._call_count += 1
        answers = [None, "first", (1.5,), ("x",), (float("nan"),), (), (-self._call_count, 3), (1 << 300,), [0]]
        if self._call_count % 7 == 0:
            raise RuntimeError("no")
        return answers[(self._call_count * 5 + now_ns) % len(answers)]  # type: ignore[return-value]

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        self._call_count += 1
        if self._call_count % 5 == 0:
            raise ValueError("never")
        return ["soon", None, 0, -1, 10**6, 2.5][self._call_count % 6]  # type: ignore[return-value]


def policy_of(limits: DeviceLimits) -> object:
    if limits.policy.startswith("hostile"):
        return Hostile({"hostile-one": Breadth.ONE, "hostile-class": Breadth.CLASS}.get(limits.policy, Breadth.ALL))
    return make_policy(limits)


POLICY_NAMES = [*POLICIES, "hostile", "hostile-one", "hostile-class"]


class EngineMachine(RuleBasedStateMachine):
    """Random events on one device. Arrivals respect the shards, as Slurm does; everything else is arbitrary."""

    def __init__(self) -> None:
        super().__init__()
        self.session_count = 0
        self.charges: dict[SessionId, int] = {}

    @initialize(
        policy=st.sampled_from(POLICY_NAMES),
        reserve=st.sampled_from([0, 64, 256, 512]),
        lanes_max=st.integers(1, 5),
        overtakes_max=st.sampled_from([1, 3, 1000]),
        quantum_ns=st.sampled_from([0, 1_000, 1_000_000]),
        half_life_ns=st.sampled_from([None, 3_000]),
        end_hung=st.booleans(),
    )
    def start(self, policy, reserve, lanes_max, overtakes_max, quantum_ns, half_life_ns, end_hung) -> None:
        self.limits = DeviceLimits(
            capacity_bytes=CAPACITY_MIB * MIB,
            lane_reserve_bytes=reserve * MIB,
            lanes_max=lanes_max,
            policy=policy,
            overtakes_max=overtakes_max,
            domain_quantum_ns=quantum_ns,
            service_half_life_ns=half_life_ns,
            hang_timeout_ns=50_000,
            on_hang=FaultAction.KILL if end_hung else FaultAction.WARN,
            on_overrun=FaultAction.KILL if end_hung else FaultAction.WARN,
        )
        self.world = World(self.limits, policy_of)

    def sessions(self, *states: SessionState) -> list[SessionId]:
        (device,) = self.world.engine.devices()
        return [one.id for one in device.sessions.values() if not states or one.state in states]

    @rule(
        persistent=st.integers(0, 200),
        ephemeral=st.integers(0, 700),
        domain=st.integers(0, 3),
        job_class=st.sampled_from(JobClass),
        weight=st.integers(1, 4),
        remaining=st.one_of(st.none(), st.integers(0, 10**7)),
    )
    def arrive(self, persistent, ephemeral, domain, job_class, weight, remaining) -> None:
        reserve_bytes = self.limits.lane_reserve_bytes
        sizes = (-(-persistent // 2) * 2 * MIB, -(-ephemeral // 2) * 2 * MIB)
        charge = charge_units(*sizes, reserve_bytes, UNIT_BYTES)
        total = device_units(self.limits.capacity_bytes, reserve_bytes, UNIT_BYTES)
        if sum(self.charges.values()) + charge > total:
            return
        self.session_count += 1
        self.charges[SessionId(self.session_count)] = charge
        self.world.arrive(
            self.session_count,
            persistent,
            ephemeral,
            domain=Domain(f"user:{domain}"),
            job_class=job_class,
            weight=weight,
            remaining_ns=remaining,
        )

    @precondition(lambda self: self.sessions(SessionState.IDLE))
    @rule(data=st.data())
    def want(self, data) -> None:
        self.world.want(data.draw(st.sampled_from(self.sessions(SessionState.IDLE))))

    def _running(self) -> list[SessionId]:
        (device,) = self.world.engine.devices()
        return [session for session in self.world.grants if not device.sessions[session].is_stopped]

    @precondition(lambda self: self._running())
    @rule(data=st.data(), wants_next=st.booleans(), hands_over=st.booleans(), span_ns=st.integers(0, 5_000))
    def boundary(self, data, wants_next, hands_over, span_ns) -> None:
        self.world.now_ns += span_ns
        self.world.boundary(data.draw(st.sampled_from(self._running())), wants_next=wants_next, hands_over=hands_over)

    @precondition(lambda self: self.world.due)
    @rule(data=st.data(), fails=st.booleans())
    def confirm(self, data, fails) -> None:
        index = data.draw(st.integers(0, len(self.world.due) - 1))
        event = self.world.due[index]
        if fails and isinstance(event, ev.LaneOpened):
            del self.world.due[index]
            self.world.lane_bytes.pop(event.lane, None)
            self.world.send(ev.LaneFailed(event.lane, event.epoch, "no memory"))
        else:
            self.world.confirm(index)

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), what=st.sampled_from(["leave", "stop", "continue", "ungate", "late"]))
    def disturb(self, data, what) -> None:
        session = data.draw(st.sampled_from(sorted(self.charges)))
        match what:
            case "leave":
                self.world.leave(session)
                del self.charges[session]
            case "stop":
                self.world.send(ev.SessionStopped(session))
            case "continue":
                self.world.send(ev.SessionContinued(session))
            case "ungate":
                self.world.send(ev.SessionUngated(session))
            case "late":
                self.world.send(ev.GrantReturned(session, 1, 5, 5))

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), persistent=st.integers(0, 400), ephemeral=st.integers(0, 900))
    def overrun(self, data, persistent, ephemeral) -> None:
        session = data.draw(st.sampled_from(sorted(self.charges)))
        self.world.send(ev.SessionOverran(session, persistent * MIB, ephemeral * MIB))

    @rule(span_ns=st.integers(0, 200_000))
    def pass_time(self, span_ns) -> None:
        self.world.wait(span_ns)

    @rule(
        event=st.sampled_from([ev.DeviceDrained, ev.DeviceResumed, ev.DeviceRecovered]),
        lost=st.booleans(),
    )
    def disturb_device(self, event, lost) -> None:
        self.world.send(ev.DeviceLost(DEVICE, "gone") if lost else event(DEVICE))
        if lost:
            self.world.send(ev.DeviceRecovered(DEVICE))

    @rule(policy=st.sampled_from(POLICY_NAMES))
    def change_policy(self, policy) -> None:
        if policy.startswith("hostile"):
            self.world.twin = None  # its answers depend on its own history, so two engines may differ
        self.limits = DeviceLimits(
            **{
                **{name: getattr(self.limits, name) for name in DeviceLimits.__dataclass_fields__},
                "policy": policy,
            }
        )
        self.world.send(ev.LimitsChanged(DEVICE, self.limits))

    @precondition(lambda self: not _is_hostile(self.world))
    @rule()
    def restart(self) -> None:
        self.world.restart(policy_of)  # type: ignore[arg-type]

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for session in list(self.charges):
            self.world.leave(session)
        self.world.confirm_all()
        (device,) = self.world.engine.snapshot().devices
        assert (device.persistent_bytes, device.held_bytes, device.sessions, device.lanes) == (0, 0, (), ())
        if not _is_hostile(self.world):
            replayed = Engine(policy_of)  # type: ignore[arg-type]
            commands = [command for event, now_ns in self.world.journal for command in replayed.handle(event, now_ns)]
            assert commands == self.world.commands, "a replay of the journal gives different commands"


def _is_hostile(world: World) -> bool:
    return any(name.startswith("hostile") for name in _policies_of(world))


def _policies_of(world: World) -> list[str]:
    return [event.limits.policy for event, _ in world.journal if isinstance(event, ev.DeviceAdded | ev.LimitsChanged)]


def test_no_event_sequence_breaks_the_memory_rule() -> None:
    run_state_machine_as_test(EngineMachine)


@pytest.mark.soak
@pytest.mark.timeout(3600)  # if it interrupts Hypothesis, the replay reports FlakyStrategyDefinition
def test_no_long_event_sequence_breaks_the_memory_rule(soak_settings) -> None:
    run_state_machine_as_test(EngineMachine, settings=soak_settings)


start_release = Device.start_release


def _free_at_once(device: Device, lane: Lane) -> None:
    """The fault to detect: bytes count as free as soon as their release is requested."""
    start_release(device, lane)
    device.end_release(lane)


def test_counting_bytes_as_free_before_the_release_is_confirmed_is_caught(monkeypatch) -> None:
    def run() -> None:
        world = World(DeviceLimits(CAPACITY_MIB * MIB, lane_reserve_bytes=512 * MIB))
        world.arrive(1, 50, 400)
        world.arrive(2, 50, 400, domain=Domain("user:ben"))
        world.confirm_all()
        world.arrive(3, 300, 100)
        world.tick(1)

    run()
    monkeypatch.setattr(Device, "start_release", _free_at_once)
    with pytest.raises(AssertionError, match="more is really held"):
        run()
