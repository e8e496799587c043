"""The order of each policy, and how invalid answers of a policy are handled."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest

from nodedaemon.core.errors import RequestError
from nodedaemon.core.fairness import ONE_NS
from nodedaemon.core.ordering import LAST, Breadth, Ordering, Waiting
from nodedaemon.core.policies import POLICIES, make_policy
from nodedaemon.core.types import DeviceLimits, JobClass, SessionId


def waiting(session: int = 1, **other: object) -> Waiting:
    fields: dict[str, object] = {
        "arrival_order": session,
        "job_class": JobClass.NORMAL,
        "weight": 1,
        "remaining_ns": None,
        "virtual_service": 0,
        "wanted_ns": 0,
    }
    fields.update(other)
    return Waiting(SessionId(session), **fields)  # type: ignore[arg-type]


def ordering(policy: str, **limits: object) -> Ordering:
    return Ordering(make_policy(DeviceLimits(1, policy=policy, **limits)))  # type: ignore[arg-type]


@dataclass
class FaultyPolicy:
    """A policy that returns or raises its `answer`."""

    answer: object
    breadth: Breadth = Breadth.ALL

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]

    def lease_service(self, holder: Waiting, first: Waiting) -> int | None:
        return self.key(holder, 0)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        ("fifo", waiting(1, virtual_service=9), waiting(2)),
        ("pack", waiting(1, virtual_service=9), waiting(2)),
        ("fair", waiting(2, virtual_service=3), waiting(1, virtual_service=4)),
        ("priority", waiting(2, virtual_service=3), waiting(1, virtual_service=4)),
        ("srtf", waiting(2, remaining_ns=3), waiting(1, remaining_ns=4)),
        ("srtf", waiting(1, remaining_ns=3), waiting(2, remaining_ns=3)),
        ("srtf", waiting(2, remaining_ns=10**12), waiting(1)),
        ("srtf", waiting(2, remaining_ns=3), waiting(1, remaining_ns=-4)),
        ("srtf", waiting(2, remaining_ns=-3), waiting(1, remaining_ns=4)),
        ("srtf", waiting(2, remaining_ns=-(10**12)), waiting(1)),
        ("srtf", waiting(1), waiting(2)),
    ],
)
def test_a_policy_puts_the_first_before_the_second(policy: str, first: Waiting, second: Waiting) -> None:
    ordering_ = ordering(policy)
    assert ordering_.key(first, 0) < ordering_.key(second, 0)


def test_each_policy_has_its_breadth() -> None:
    assert {name: ordering(name).breadth for name in POLICIES} == {
        "fifo": Breadth.ONE,
        "srtf": Breadth.ONE,
        "pack": Breadth.ALL,
        "fair": Breadth.ALL,
        "priority": Breadth.CLASS,
    }
    assert [name for name in POLICIES if ordering(name).is_timed] == ["fair", "priority"]


def test_an_unknown_policy_is_refused_with_a_list_of_policies() -> None:
    with pytest.raises(RequestError, match="policy lifo: unknown; use one of fifo, srtf, pack, fair, priority"):
        ordering("lifo")


@pytest.mark.parametrize("policy", ["fair", "priority"])
def test_a_fair_lease_lasts_until_the_holder_is_ahead_for_its_weight(policy: str) -> None:
    holder = waiting(1, virtual_service=2 * ONE_NS, weight=3)
    first = waiting(2, virtual_service=5 * ONE_NS)
    assert ordering(policy).lease_service(holder, first, 0) == 9 * ONE_NS
    assert ordering(policy).lease_service(first, holder, 0) == -3 * ONE_NS
    assert ordering(policy, fair_slack_ns=10).lease_service(first, holder, 0) == 7 * ONE_NS


def test_a_lease_ends_at_once_for_a_higher_class_and_never_for_a_lower_one() -> None:
    high, normal = waiting(1, job_class=JobClass.HIGH, virtual_service=10**9), waiting(2)
    assert ordering("priority").lease_service(normal, high, 0) == -1
    assert ordering("priority").lease_service(high, normal, 0) is None
    assert ordering("fifo").lease_service(normal, high, 0) == 0


def test_a_policy_without_leases_renews_the_grant_while_its_order_says_so() -> None:
    older, younger = waiting(1), waiting(2)
    assert ordering("fifo").lease_service(older, younger, 0) is None
    assert ordering("fifo").lease_service(younger, older, 0) == 0


@pytest.mark.parametrize("answer", [None, "first", 3, [0], (1.5,), ("x",), (0, None), RuntimeError("no")])
def test_an_invalid_key_sorts_last(answer: object) -> None:
    assert Ordering(FaultyPolicy(answer)).key(waiting(), 0) == LAST


@pytest.mark.parametrize("answer", [(), (3,), (1 << 300, -4), (True,)])
def test_a_key_of_integers_is_used_unchanged(answer: object) -> None:
    assert Ordering(FaultyPolicy(answer)).key(waiting(), 0) == answer


@pytest.mark.parametrize(
    ("answer", "service"), [(None, None), (7, 7), (-7, -7), ("soon", 0), (2.5, 0), (RuntimeError("no"), 0)]
)
def test_an_invalid_lease_ends_now(answer: object, service: int | None) -> None:
    assert Ordering(FaultyPolicy(answer)).lease_service(waiting(1), waiting(2), 0) == service


@dataclass
class FaultyLeasingPolicy:
    """A leasing policy that returns or raises its `answer`."""

    answer: object
    breadth: Breadth = Breadth.ONE

    def key(self, session: Waiting, now_ns: int) -> tuple[int, ...]:
        return (0,)

    def lease_ns(self, holder: Waiting, first: Waiting) -> int | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "service"), [(None, None), (7, 7 * ONE_NS), ("soon", 0), (2.5, 0), (RuntimeError("no"), 0)]
)
def test_an_invalid_lease_time_ends_now(answer: object, service: int | None) -> None:
    assert Ordering(FaultyLeasingPolicy(answer)).lease_service(waiting(1), waiting(2), 0) == service


def test_a_copy_shares_the_policy() -> None:
    ordering_ = ordering("fair")
    assert copy.deepcopy(ordering_) is ordering_
