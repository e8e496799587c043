"""A session follows the transition table, and a refused step is reported with the session's history."""

from __future__ import annotations

import pytest

from nodedaemon.core.errors import PeerError
from nodedaemon.core.fairness import ONE_NS
from nodedaemon.core.state.sessions import HOLDING, RECENT_STEPS_MAX, TRANSITIONS, Session, SessionState
from nodedaemon.core.types import Domain, JobClass, JobId, SessionId


def make(**other: object) -> Session:
    fields: dict[str, object] = {"weight": 1, "remaining_ns": None, "arrival_order": 1}
    fields.update(other)
    return Session(SessionId(7), JobId("42"), Domain("user:ada"), 0, 0, JobClass.NORMAL, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("target", SessionState)
def test_exactly_the_steps_of_the_table_are_taken(state: SessionState, target: SessionState) -> None:
    session = make(state=state)
    if target in TRANSITIONS[state]:
        session.step(target, 5)
        assert session.state is target
    else:
        with pytest.raises(PeerError, match=f"session 7 of job 42: {state} to {target}"):
            session.step(target, 5)
        assert session.state is state


def test_every_admitted_session_can_leave() -> None:
    leavers = [state for state, targets in TRANSITIONS.items() if SessionState.LEAVING in targets]
    assert set(SessionState) - set(leavers) == {SessionState.ARRIVING, SessionState.LEAVING}


def test_a_refused_step_lists_the_last_steps() -> None:
    session = make()
    session.step(SessionState.IDLE, 3)
    session.step(SessionState.WAITING, 9)
    with pytest.raises(PeerError, match="waiting to waiting; last steps: idle@3 waiting@9"):
        session.step(SessionState.WAITING, 10)


def test_the_recorded_steps_of_a_session_are_bounded() -> None:
    session = make(state=SessionState.IDLE)
    for now_ns in range(20):
        session.step(SessionState.WAITING, now_ns)
        session.step(SessionState.RUNNING, now_ns)
        session.step(SessionState.IDLE, now_ns)
    assert len(session.recent_steps) == RECENT_STEPS_MAX
    assert session.recent_steps[-1] == "idle@19"


@pytest.mark.parametrize("state", SessionState)
def test_running_and_revoked_sessions_hold_a_grant(state: SessionState) -> None:
    assert make(state=state).is_holding == (state in HOLDING)


def test_the_view_of_a_waiter_ignores_the_clock() -> None:
    view = make(virtual=5, remaining_ns=100).view(10**9, 10**9)
    assert (view.virtual_service, view.remaining_ns) == (5, 100)


def test_the_view_of_a_holder_includes_the_service_of_its_current_grant() -> None:
    session = make(virtual=5 * ONE_NS, remaining_ns=100, weight=2, is_served=True, granted_plain=0, granted_grown=0)
    view = session.view(30 * ONE_NS, 40 * ONE_NS)
    assert (view.virtual_service, view.remaining_ns) == (25 * ONE_NS, 70)
    assert session.view(300 * ONE_NS, 0).remaining_ns == -200
    assert make(is_served=True).view(1, 1).remaining_ns is None
