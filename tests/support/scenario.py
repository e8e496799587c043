"""One hour and two minutes of a small cluster, small enough to compute by hand from docs/accounting.md.

Three users, two devices, overlapping lanes, a requeue with a suspension, a wall clock that jumps by an hour and a
daemon that is killed and restarted. Times are seconds from T0 on the monotonic clock. The meter produces the usage, so
tests cover the whole path from a daemon's events to a report.

    d0  101 ada/vision  charge 1  0..3600     runs 0-1200, waits -1800, outside -2400, runs -3000, outside -3600
        102 ben/vision  charge 3  600..2400   runs 600-1800, outside -2400; moves into lane 1 at 1200
    d1  201 cyd/nlp     restart 0 0..1000     runs
        201 cyd/nlp     restart 1 1800..3000  runs, suspended 2000-2300; the daemon is killed at 2500
        301 ada/nlp               3100..3700  runs; the wall clock jumps by an hour at 3300
"""

from typing import Any

import msgspec
from sqlalchemy import select

from accounting.meter import Activity, DeviceMeter, MeteredDevice
from accounting.records import (
    AccountRecord,
    AdmissionReason,
    AdmissionRecord,
    DeviceRecord,
    IncarnationRecord,
    JobKey,
    JobRecord,
    LaneSpanRecord,
    MeasurementRecord,
    NodeEventRecord,
    Record,
    SessionRecord,
    SuspensionRecord,
)
from accounting.storage.database import Database
from accounting.storage.tables import METADATA

S = 1_000_000_000
MIB = 1 << 20
# 2026-11-01T00:00:00 UTC
T0 = 1_793_491_200 * S
# The node's monotonic clock at T0: the node has been up for a while.
M0 = 5_000 * S
JUMP = 3_600 * S
END = T0 + 86_400 * S
MODEL = "Tester 1G"
RUN, WAIT, OUT, STOP = Activity.RUNNING, Activity.WAITING, Activity.OUTSIDE, Activity.SUSPENDED


def key(job_id: int, restart_count: int = 0) -> JobKey:
    return JobKey(cluster="alpha", job_id=job_id, restart_count=restart_count)


def utc(second: int) -> int:
    """The node's wall clock, which jumps at 3300."""
    return T0 + second * S + (JUMP if second > 3300 else 0)


def mono(second: int) -> int:
    return M0 + second * S


def records() -> list[Record]:
    """All records that the daemons write, in order of time."""
    return [
        *_inventory(),
        *_admissions(),
        *_job_records(),
        *_sessions(),
        *_usage(),
        *_lane_spans(),
        *_measurements(),
        *_events(),
    ]


def dump(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, ordered. Two dumps are equal if nothing has changed."""
    with database.reading() as connection:
        return {
            name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns))]
            for name, table in METADATA.tables.items()
            if name != "watermarks"
        }


def _inventory() -> list[Record]:
    devices = [
        DeviceRecord(
            cluster="alpha",
            node="n1",
            device=f"d{index}",
            index=index,
            model=MODEL,
            capacity_bytes=1024 * MIB,
            lane_reserve_bytes=400 * MIB,
            seen_utc_ns=T0,
        )
        for index in (0, 1)
    ]
    lives = [
        IncarnationRecord(
            cluster="alpha",
            node="n1",
            incarnation=name,
            boot_id="b1",
            version="0.1.0",
            started_utc_ns=utc(second),
            started_mono_ns=mono(second),
        )
        for name, second in (("i1", 0), ("i2", 2500))
    ]
    accounts = [
        AccountRecord(cluster="alpha", account=name, parent=parent, seen_utc_ns=T0)
        for name, parent in (("root", ""), ("science", "root"), ("images", "science"), ("vision", "images"))
    ]
    # An older record of an account does not replace a newer one.
    accounts.append(AccountRecord(cluster="alpha", account="vision", parent="nlp", seen_utc_ns=T0 - S))
    return [*devices, *lives, *accounts]


def _admissions() -> list[Record]:
    shortage = AdmissionReason(
        what="shards of device d0", needed=30, free=10, unit="shards", advice="wait for a job to end"
    )
    too_large = AdmissionReason(
        what="memory of device d0", needed=2048 * MIB, free=1024 * MIB, advice="use a smaller batch"
    )
    common = {"cluster": "alpha", "partition": "gpu", "device_model": MODEL}
    return [
        AdmissionRecord(
            **common, admission="a101", decided_utc_ns=T0 - 10 * S, decision="admit", basis="profile", user="ada",
            account="vision", signature="cnn", persistent_bytes=100 * MIB, ephemeral_bytes=400 * MIB,
            charge_bytes=112 * MIB, charge_shards=7, profile_version=1,
        ),
        AdmissionRecord(
            **common, admission="a102", decided_utc_ns=T0, decision="defer", basis="declared", user="ben",
            account="vision", signature="rnn", reasons=(shortage,), charge_shards=30,
        ),
        AdmissionRecord(
            **common, admission="a999", decided_utc_ns=T0 + S, decision="refuse", basis="declared", user="cyd",
            account="nlp", signature="huge", reasons=(too_large, shortage),
        ),
    ]  # fmt: skip


def _job(
    job: JobKey, user: str, account: str, signature: str, submit: int, start: int, end: int, **more: Any
) -> list[Record]:
    whole: dict[str, Any] = {
        "key": job, "user": user, "account": account, "signature": signature, "name": f"{signature}-run",
        "partition": "gpu", "submit_utc_ns": T0 + submit * S, "start_utc_ns": utc(start),
        "start_mono_ns": mono(start), **more,
    }  # fmt: skip
    started = JobRecord(**{**whole, "suspended_ns": 0, "state": "RUNNING"})
    return [started, JobRecord(**{"state": "COMPLETED", **whole}, end_utc_ns=utc(end), end_mono_ns=mono(end))]


def _job_records() -> list[Record]:
    return [
        *_job(key(101), "ada", "vision", "cnn", -10, 0, 3600, admission="a101"),
        *_job(key(102), "ben", "vision", "rnn", 0, 600, 2400, admission="a102"),
        *_job(key(201), "cyd", "nlp", "new", -100, 0, 1000, eligible_utc_ns=T0 - 50 * S, state="REQUEUED"),
        *_job(key(201, 1), "cyd", "nlp", "new", -100, 1800, 3000, eligible_utc_ns=utc(1000), suspended_ns=300 * S),
        *_job(key(301), "ada", "nlp", "lm", 3000, 3100, 3700),
        SuspensionRecord(key=key(201, 1), start_utc_ns=utc(2000), span_ns=300 * S),
    ]


def _sessions() -> list[Record]:
    rows = [
        (1, key(101), "d0", "i1", 0, 3600, 1500),
        (2, key(102), "d0", "i1", 600, 2400, 900),
        (3, key(201), "d1", "i1", 0, 1000, 500),
        (4, key(201, 1), "d1", "i1", 1800, 3000, 450),
        (5, key(301), "d1", "i2", 3100, 3700, 600),
    ]
    made: list[Record] = []
    for session, job, device, incarnation, start, end, iterations in rows:
        started = SessionRecord(
            job=job, node="n1", device=device, session=session, incarnation=incarnation,
            start_utc_ns=utc(start), start_mono_ns=mono(start),
        )  # fmt: skip
        ended = msgspec.structs.replace(
            started, end_utc_ns=utc(end), end_mono_ns=mono(end), end_reason="bye", iteration_count=iterations
        )
        made += [started, ended]
    return made


def _meter(device: str, incarnation: str, second: int) -> DeviceMeter:
    metered = MeteredDevice("alpha", "n1", device, incarnation, 1024 * MIB)
    return DeviceMeter(metered, now_utc_ns=utc(second), now_mono_ns=mono(second))


def _run_in_lane(
    meter: DeviceMeter, session: int, job: JobKey, sizes_mib: tuple[int, int], second: int, charge: int
) -> None:
    """The session joins and runs in a lane of its own number."""
    persistent_bytes, ephemeral_bytes = (size * MIB for size in sizes_mib)
    meter.set_lane(session, ephemeral_bytes, mono(second))
    meter.join(session, job, mono(second), charge=charge)
    meter.set_memory(session, persistent_bytes, ephemeral_bytes, mono(second))
    meter.bind(session, session, mono(second))
    meter.change(session, RUN, mono(second))


def _usage() -> list[Record]:
    d0 = _meter("d0", "i1", 0)
    _run_in_lane(d0, 1, key(101), (100, 400), 0, charge=1)
    d0.change(1, RUN, mono(600), iteration_count=600)
    _run_in_lane(d0, 2, key(102), (200, 300), 600, charge=3)
    d0.change(1, WAIT, mono(1200), iteration_count=300)
    d0.change(2, RUN, mono(1200), iteration_count=300)
    d0.bind(2, 1, mono(1200))
    d0.set_lane(2, 0, mono(1200))
    d0.change(1, OUT, mono(1800))
    d0.change(2, OUT, mono(1800), iteration_count=600)
    made = d0.close(utc(1800), mono(1800))
    d0.leave(2, mono(2400))
    d0.change(1, RUN, mono(2400))
    # The killed daemon has written the interval up to its last moment. The next daemon finds the session running.
    made += d0.close(utc(2500), mono(2500))
    d0 = _meter("d0", "i2", 2500)
    _run_in_lane(d0, 1, key(101), (100, 400), 2500, charge=1)
    d0.change(1, OUT, mono(3000), iteration_count=600)
    made += d0.close(T0 + 3300 * S + JUMP, mono(3300))
    d0.leave(1, mono(3600))
    return [*made, *d0.close(utc(3600), mono(3600)), *_usage_of_d1()]


def _usage_of_d1() -> list[Record]:
    d1 = _meter("d1", "i1", 0)
    d1.join(3, key(201), mono(0), charge=2)
    d1.change(3, RUN, mono(0))
    d1.change(3, OUT, mono(1000), iteration_count=500)
    d1.leave(3, mono(1000))
    made = d1.close(utc(1800), mono(1800))
    d1.join(4, key(201, 1), mono(1800), charge=2)
    d1.change(4, RUN, mono(1800))
    d1.change(4, STOP, mono(2000), iteration_count=100)
    d1.change(4, RUN, mono(2300))
    made += d1.close(utc(2500), mono(2500))
    d1 = _meter("d1", "i2", 2500)
    d1.join(4, key(201, 1), mono(2500), charge=2)
    d1.change(4, RUN, mono(2500))
    d1.change(4, OUT, mono(3000), iteration_count=350)
    d1.leave(4, mono(3000))
    d1.join(5, key(301), mono(3100), charge=2)
    d1.change(5, RUN, mono(3100))
    made += d1.close(T0 + 3300 * S + JUMP, mono(3300))
    d1.change(5, OUT, mono(3700), iteration_count=600)
    d1.leave(5, mono(3700))
    return [*made, *d1.close(utc(3720), mono(3720))]


def _lane_spans() -> list[Record]:
    spans = [
        (key(101), "d0", "i1", 1, 1, 400, 0, 2500),
        (key(101), "d0", "i2", 1, 1, 400, 2500, 3600),
        (key(102), "d0", "i1", 2, 2, 300, 600, 1200),
        (key(102), "d0", "i1", 2, 1, 400, 1200, 2400),
        (key(201), "d1", "i1", 3, 1, 100, 0, 1000),
    ]
    return [
        LaneSpanRecord(
            job=job, node="n1", device=device, incarnation=incarnation, session=session, lane=lane,
            lane_bytes=size * MIB, start_utc_ns=utc(start), start_mono_ns=mono(start), span_ns=(end - start) * S,
        )
        for job, device, incarnation, session, lane, size, start, end in spans
    ]  # fmt: skip


def _measurements() -> list[Record]:
    rows = [(101, "ada", "cnn", 60, 100, 380), (101, "ada", "cnn", 3600, 100, 400), (102, "ben", "rnn", 2400, 200, 300)]
    return [
        MeasurementRecord(
            job=key(job_id), user=user, signature=signature, device_model=MODEL, measured_utc_ns=utc(second),
            persistent_bytes=persistent * MIB, ephemeral_bytes=ephemeral * MIB, solo_iteration_ns=S,
            iteration_count=100, boundary_rule="optimizer", model_hash="m1", input_hash="x1",
        )
        for job_id, user, signature, second, persistent, ephemeral in rows
    ]  # fmt: skip


def _events() -> list[Record]:
    common = {"cluster": "alpha", "node": "n1"}
    return [
        NodeEventRecord(
            **common, incarnation="i1", sequence=1, kind="overrun", happened_utc_ns=utc(700),
            happened_mono_ns=mono(700), device="d0", job=key(102), amount_bytes=10 * MIB, detail="grew at a boundary",
        ),
        NodeEventRecord(
            **common, incarnation="i1", sequence=2, kind="xid", happened_utc_ns=utc(900), happened_mono_ns=mono(900),
            device="d1", code=31,
        ),
        NodeEventRecord(
            **common, incarnation="i2", sequence=1, kind="clock_stepped", happened_utc_ns=utc(3301),
            happened_mono_ns=mono(3301), detail="+3600 s",
        ),
    ]  # fmt: skip
