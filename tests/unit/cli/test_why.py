"""`salus why` prints answers of salusd and of salus-admitd, which have the same shape."""

from cli.node.status import why_lines
from nodedaemon.core.types import MIB
from nodedaemon.wire.control import AdmissionWhy, Charge, ProfileSummary, Reason, SessionWhy, WhatIf, WhyAnswer


def queued(profile: ProfileSummary | None, now: Charge, reasons: list[Reason]) -> WhyAnswer:
    charge = Charge(kind="shared", job_class="normal", shards=7)
    admission = AdmissionWhy(charge=charge, profile=profile, now=now)
    return WhyAnswer(job="12", user="ada", state="PENDING", reasons=reasons, admission=admission)


def test_a_queued_job_shows_slurms_reason_its_charge_and_what_it_would_get_now() -> None:
    profile = ProfileSummary(persistent_bytes=64 * MIB, ephemeral_bytes=32 * MIB, run_count=3)
    answer = queued(profile, Charge(shards=5, basis="profile"), [Reason(what="Resources")])
    assert why_lines(answer) == [
        "job 12: pending, Resources",
        "  admitted: shared, 7 shards, class normal",
        "  profile:  persistent 64M, ephemeral 32M, from 3 runs",
        "  now:      5 shards by profile",
    ]


def test_a_queued_job_without_profile_that_would_be_refused_shows_why() -> None:
    lines = why_lines(queued(None, Charge(is_admitted=False, reasons=[Reason(what="too large")]), []))
    assert lines[0] == "job 12: pending, no reason from Slurm"
    assert lines[2:] == [
        "  profile:  none: its first run gets a device of its own and is measured",
        "  now:      refused",
        "            too large",
    ]


def test_a_job_on_the_node_shows_the_reasons_and_changes_of_each_session() -> None:
    waiting = SessionWhy(
        session=2,
        device="gpu0",
        state="waiting",
        reasons=[
            Reason(what="lane 1 runs job 7", needed=1, free=0, unit="turns", advice="the policy decides"),
            Reason(what="lane memory", needed=MIB, free=0, unit="bytes"),
        ],
        changes=[
            WhatIf(change="job 7 ends", is_served=True, boundary_count=0),
            WhatIf(change="nothing changes", is_served=True, boundary_count=1),
            WhatIf(change="policy fifo", is_served=False),
        ],
    )
    running = SessionWhy(session=3, device="gpu0", state="running", reasons=[], changes=[])
    assert why_lines(WhyAnswer(job="8", user="ada", state="RUNNING", sessions=[waiting, running])) == [
        "job 8 of ada, session 2: waiting",
        "  - lane 1 runs job 7: 1 turn needed, 0 free",
        "    the policy decides",
        "  - lane memory: 1M needed, 0 free",
        "  what would change it:",
        "    job 7 ends: it would run immediately",
        "    nothing changes: it would run after 1 boundary",
        "job 8 of ada, session 3: running",
        "  nothing prevents it from running",
    ]


def test_a_job_without_connected_processes_says_so() -> None:
    assert why_lines(WhyAnswer(job="8", user="ada", state="RUNNING")) == [
        "job 8: no session yet: none of its processes has connected to Salus"
    ]
