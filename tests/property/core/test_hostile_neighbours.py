"""A session that Slurm placed always runs, whatever its neighbours do: stop, hang, refuse turns, ask for more, leave.

Honest sessions reach their boundaries. Hostile ones do what the test draws. A session that the engine ends dies. Every
honest session must be granted within a time that depends only on the number of hostile sessions and `HangTimeout`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nodedaemon.core import commands as cmd
from nodedaemon.core import engine as engine_module
from nodedaemon.core import events as ev
from nodedaemon.core.memory import charge_units, device_units
from nodedaemon.core.policies import POLICIES
from nodedaemon.core.round.claims import Round
from nodedaemon.core.state.lanes import Device
from nodedaemon.core.types import MIB, DeviceLimits, Domain, SessionId
from tests.support.engine_world import World

CAPACITY_MIB = 1024
HANG_NS = 50_000
UNIT_BYTES = 16 * MIB

SIZES = st.tuples(st.integers(1, 150), st.integers(1, 600))
ACTIONS = st.sampled_from(["stop", "continue", "ungate", "want", "boundary", "leave", "overrun", "wait"])


class Neighbourhood:
    """One device with placed sessions. Sessions up to `hostile_count` are hostile."""

    def __init__(self, policy: str, reserve_mib: int, lanes_max: int, sizes: list[tuple[int, int]]) -> None:
        limits = DeviceLimits(
            CAPACITY_MIB * MIB,
            lane_reserve_bytes=reserve_mib * MIB,
            lanes_max=lanes_max,
            policy=policy,
            overtakes_max=1,
            domain_quantum_ns=1_000,
            hang_timeout_ns=HANG_NS,
        )
        self.world = World(limits)
        self.sizes = sizes

    def arrive(self, number: int) -> None:
        persistent_mib, ephemeral_mib = self.sizes[number]
        self.world.arrive(
            number + 1, persistent_mib, ephemeral_mib, domain=Domain(f"user:{number % 3}"), is_placed=True
        )

    def live(self, session: int) -> bool:
        return self.world.engine.session(SessionId(session)) is not None

    def misbehave(self, session: int, action: str) -> None:
        world, view = self.world, self.world.engine.session(SessionId(session))
        if view is None or view.is_leaving:
            return
        match action:
            case "stop":
                world.send(ev.SessionStopped(view.id))
            case "continue":
                world.send(ev.SessionContinued(view.id))
            case "ungate":
                world.send(ev.SessionUngated(view.id, has_own_memory=view.epoch is None and not view.is_waiting))
            case "overrun":
                world.send(ev.SessionOverran(view.id, view.persistent_bytes * 2, view.ephemeral_bytes * 2))
            case "want" if view.is_admitted and view.epoch is None and not view.is_waiting and view.ephemeral_bytes:
                world.want(session)
            case "boundary" if view.id in world.grants and not view.is_stopped:
                world.boundary(view.id)
            case "leave":
                world.leave(view.id)
            case "wait":
                world.now_ns += HANG_NS // 3
                world.tick()
        self.obey()

    def obey(self) -> None:
        """Deliver confirmations, and let the sessions die that the engine ends."""
        self.world.confirm_all()
        for command in self.world.commands:
            if isinstance(command, cmd.EndSession):
                view = self.world.engine.session(command.session)
                if view is not None and not view.is_leaving:
                    self.world.leave(command.session)
        self.world.commands.clear()
        self.world.confirm_all()

    def live_on(self, honest: list[int], round_count: int) -> set[int]:
        """Time passes and honest sessions train. Returns those that were granted."""
        granted: set[int] = set()
        for _ in range(round_count):
            for session in honest:
                view = self.world.engine.session(SessionId(session))
                if view is not None and view.is_admitted and view.epoch is None and not view.is_waiting:
                    self.world.want(session)
                self.obey()
                if SessionId(session) in self.world.grants:
                    granted.add(session)
                    self.world.boundary(SessionId(session))
                    self.obey()
            self.world.now_ns += HANG_NS // 2
            self.world.tick()
            self.obey()
        return granted


def fits(reserve_mib: int, sizes: list[tuple[int, int]]) -> bool:
    """Whether Slurm would place all of them on the device."""
    charges = [charge_units(p * MIB, e * MIB, reserve_mib * MIB, UNIT_BYTES) for p, e in sizes]
    return sum(charges) <= device_units(CAPACITY_MIB * MIB, reserve_mib * MIB, UNIT_BYTES)


def all_honest_sessions_run(policy, reserve_mib, lanes_max, hostile, honest, actions) -> bool:
    place = Neighbourhood(policy, reserve_mib, lanes_max, [*hostile, *honest])
    for number in range(len(hostile)):
        place.arrive(number)
    place.obey()
    for session, action in actions[: len(actions) // 2]:
        place.misbehave(session % len(hostile) + 1, action)
    numbers = list(range(len(hostile) + 1, len(hostile) + len(honest) + 1))
    for session in numbers:
        place.arrive(session - 1)
        place.obey()
    for session, action in actions[len(actions) // 2 :]:
        place.misbehave(session % len(hostile) + 1, action)
    # Each hostile session can delay the others once until it counts as hung, and once until it is ended.
    return place.live_on(numbers, 6 * (len(hostile) + 1)) == set(numbers)


neighbourhoods = given(
    policy=st.sampled_from(sorted(POLICIES)),
    reserve_mib=st.sampled_from([64, 256, 512]),
    lanes_max=st.integers(1, 4),
    hostile=st.lists(SIZES, min_size=1, max_size=3),
    honest=st.lists(SIZES, min_size=1, max_size=3),
    actions=st.lists(st.tuples(st.integers(0, 2), ACTIONS), max_size=12),
)


@neighbourhoods
def test_every_placed_session_runs_beside_hostile_neighbours(**drawn) -> None:
    assume(fits(drawn["reserve_mib"], [*drawn["hostile"], *drawn["honest"]]))
    assert all_honest_sessions_run(**drawn)


@pytest.mark.soak
def test_every_placed_session_runs_beside_hostile_neighbours_in_many_draws(soak_settings) -> None:
    soak_settings(test_every_placed_session_runs_beside_hostile_neighbours)()


def without_reclaim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "reclaim_memory", lambda round_: None)


def without_check_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Round, "check_in_ns", lambda self, holder: math.inf)


def with_pins_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    without_reclaim(monkeypatch)
    monkeypatch.setattr(Device, "can_pin", lambda self, session: True)


STOPPED = ("fair", 512, 4, [(10, 512)], [(10, 512)], [(0, "want"), (0, "stop")])
HUNG = ("fifo", 512, 4, [(10, 512)], [(10, 512)], [(0, "want"), (0, "wait")])
UNGATED = ("fair", 512, 4, [(10, 512)], [(10, 512)], [(0, "want"), (0, "ungate")])
#: The device would be full before the honest session arrives.
OVERRUN = ("fair", 64, 4, [(150, 64)], [(200, 200)], [(0, "overrun")] * 4 + [(0, "wait")] * 4)


@pytest.mark.parametrize(
    ("remove_guard", "case"),
    [
        (without_reclaim, STOPPED),
        (without_reclaim, HUNG),
        (without_check_in, HUNG),
        (with_pins_for_all, UNGATED),
        (without_reclaim, OVERRUN),
    ],
)
def test_the_property_fails_without_its_guard(remove_guard: Callable[..., None], case, monkeypatch) -> None:
    assert all_honest_sessions_run(*case)
    remove_guard(monkeypatch)
    assert not all_honest_sessions_run(*case)
