"""Profiles: what admission knows about a user's signature on a device model, its history, and the runs behind it.

While a profile exists, its maxima only grow. A user can never set a value below what was measured. The measured values
remain the lower bound after the user has forgotten the profile; only an operator can forget them too. Otherwise a job
could be charged less than it is known to need. Every change to a value that admission uses creates a version with a
cause. A measurement that is already stored changes nothing.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, String, delete, func, insert, select, update

from accounting.records import DETAIL_LENGTH_MAX, MeasurementRecord, clean_text
from accounting.storage.catalog import Row, RowCatalog
from accounting.storage.database import Database, insert_rows
from accounting.storage.tables import CLUSTERS, PROFILES, RUNS, VERSIONS
from accounting.viewer import Viewer
from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import Profile
from nodedaemon.wire.envelope import NotFoundError, NotPermittedError

# The median of this many runs follows a framework upgrade within weeks and ignores a single outlier.
SOLO_RUNS_MAX = 25

_SIZES = ("persistent_bytes", "ephemeral_bytes")

Cause = Literal["measured", "set", "imported", "forgotten", "stale", "confirmed"]


class ProfileKey(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A profile belongs to one user: two users with the same signature have separate profiles."""

    cluster: str
    user: str
    signature: str
    device_model: str


class ProfileValues(msgspec.Struct, frozen=True, kw_only=True):
    """What admission uses in one version of a profile. Bytes exclude headroom."""

    key: ProfileKey
    version: int
    persistent_bytes: int
    ephemeral_bytes: int
    solo_iteration_ns: int | None = None
    changed_utc_ns: int = 0


class ProfileView(ProfileValues, frozen=True, kw_only=True):
    """A profile as admission and `salus profiles` see it."""

    measured_persistent_bytes: int = 0
    measured_ephemeral_bytes: int = 0
    live_persistent_bytes: int = 0
    live_ephemeral_bytes: int = 0
    boundary_rule: str = ""
    model_hash: str = ""
    input_hash: str = ""
    run_count: int = 0
    stale_reason: str = ""
    is_forgotten: bool = False
    seen_utc_ns: int = 0

    def core(self) -> Profile:
        """The profile in the form that core.admission uses."""
        return Profile(self.persistent_bytes, self.ephemeral_bytes, self.solo_iteration_ns, self.run_count)

    def why(self) -> str:
        """Where the values come from, for `salus profiles show`."""
        if self.is_forgotten:
            return "forgotten: the next run is treated as an unknown job, and charged for at least what was measured"
        measured = (self.measured_persistent_bytes, self.measured_ephemeral_bytes)
        is_set = (self.persistent_bytes, self.ephemeral_bytes) != measured
        source = "set by hand, never below what was measured" if is_set else "largest measured"
        text = f"{source}; {self.run_count} run{'s' if self.run_count != 1 else ''} measured"
        return f"{text}; stale: {self.stale_reason}" if self.stale_reason else text


class ProfileChange(ProfileValues, frozen=True, kw_only=True):
    """One version in a profile's history."""

    changed_by: str
    cause: str
    detail: str


_Value = TypeVar("_Value", ProfileView, ProfileChange)


def learn(connection: Connection, cluster_id: int, job_row_id: int, measured: MeasurementRecord) -> None:
    """Raise the profile to what a run measured, within the ledger's transaction."""
    names = {name: clean_text(getattr(measured, name)) for name in ("signature", "device_model")}
    row = _locked_or_new(connection, {"cluster_id": cluster_id, "user": clean_text(measured.user, 64), **names})
    is_forgotten = measured.measured_utc_ns <= row["forgotten_utc_ns"]
    if is_forgotten or not _record_run(connection, row["id"], job_row_id, measured):
        return
    changed: Row = {
        **{name: max(row[name], getattr(measured, name)) for name in _SIZES},
        **{f"measured_{name}": max(row[f"measured_{name}"], getattr(measured, name)) for name in _SIZES},
        **{f"live_{name}": max(row[f"live_{name}"], getattr(measured, f"live_{name}")) for name in _SIZES},
        "seen_utc_ns": max(row["seen_utc_ns"], measured.measured_utc_ns),
        "solo_iteration_ns": _solo_iteration_ns(connection, row["id"]),
        "run_count": connection.scalar(select(func.count()).where(RUNS.c.profile_id == row["id"])),
        "is_forgotten": False,
    }
    cause = _update_hashes(row, measured, changed)
    is_changed = row["version"] == 0 or row["is_forgotten"] or any(row[name] != changed[name] for name in _SIZES)
    if is_changed or cause != "measured":
        detail = f"job {measured.job.job_id}" + (f": {measured.stale_reason}" if measured.stale_reason else "")
        _add_version(connection, row, changed, measured.measured_utc_ns, "salus", cause, detail)
    connection.execute(update(PROFILES).where(PROFILES.c.id == row["id"]).values(changed))


def list_profiles(
    database: Database,
    viewer: Viewer,
    *,
    cluster: str | None = None,
    users: Iterable[str] = (),
    signature: str | None = None,
    device_model: str | None = None,
    changed_from_utc_ns: int = 0,
    with_forgotten: bool = False,
) -> list[ProfileView]:
    """The profiles that `viewer` may see, ordered by user, signature and model.

    Admission refreshes its cache with `changed_from_utc_ns` (measured or changed since) and `with_forgotten=True`.
    """
    wanted = select(PROFILES, CLUSTERS.c.name.label("cluster")).join(CLUSTERS, CLUSTERS.c.id == PROFILES.c.cluster_id)
    conditions = _visible(viewer, users, signature)
    for column, value in ((CLUSTERS.c.name, cluster), (PROFILES.c.device_model, device_model)):
        if value is not None:
            conditions.append(column == value)
    if changed_from_utc_ns:
        since = changed_from_utc_ns
        conditions.append((PROFILES.c.changed_utc_ns >= since) | (PROFILES.c.seen_utc_ns >= since))
    if not with_forgotten:
        conditions.append(PROFILES.c.is_forgotten.is_(False))
    order = (PROFILES.c.user, PROFILES.c.signature, PROFILES.c.device_model)
    return _read(database, ProfileView, wanted.where(*conditions).order_by(*order))


def find_profile(database: Database, key: ProfileKey) -> ProfileView | None:
    """The profile that admission uses for `key`; None for an unknown job."""
    operator = Viewer(uid=0, user="root", is_operator=True)
    found = list_profiles(
        database,
        operator,
        cluster=key.cluster,
        users=[key.user],
        signature=key.signature,
        device_model=key.device_model,
    )
    return found[0] if found else None


def set_profile(
    database: Database,
    viewer: Viewer,
    key: ProfileKey,
    *,
    persistent_bytes: int,
    ephemeral_bytes: int,
    now_utc_ns: int,
    solo_iteration_ns: int | None = None,
    cause: Cause = "set",
) -> ProfileView:
    """Set the values that admission uses. RequestError if one is below what was measured. Later runs may raise them."""
    _require_owner(viewer, key)

    def work(connection: Connection) -> None:
        catalog = RowCatalog()
        catalog.find_clusters(connection, [key.cluster])
        row = _locked_or_new(connection, _names(key, catalog.clusters[key.cluster]))
        _require_measured(row, key, persistent_bytes, ephemeral_bytes)
        changed: Row = {
            "persistent_bytes": persistent_bytes,
            "ephemeral_bytes": ephemeral_bytes,
            "solo_iteration_ns": row["solo_iteration_ns"] if solo_iteration_ns is None else solo_iteration_ns,
            "is_forgotten": False,
        }
        if all(row[name] == value for name, value in changed.items()):
            return
        _add_version(connection, row, changed, now_utc_ns, viewer.user, cause, "")
        connection.execute(update(PROFILES).where(PROFILES.c.id == row["id"]).values(changed))

    database.write(work)
    stored = find_profile(database, key)
    assert stored is not None
    return stored


def forget_profile(database: Database, viewer: Viewer, key: ProfileKey, *, now_utc_ns: int) -> None:
    """Make the signature an unknown job again. Its history stays; earlier measurements are ignored from now on.

    The measured sizes stay as the lower bound of later values, unless an operator forgets the profile.
    """
    _require_owner(viewer, key)

    def work(connection: Connection) -> None:
        cluster_id = connection.scalar(select(CLUSTERS.c.id).where(CLUSTERS.c.name == key.cluster))
        row = _locked(connection, _names(key, cluster_id or 0))
        bounds = (
            {f"{prefix}{name}": row[f"measured_{name}"] for prefix in ("", "measured_") for name in _SIZES}
            if row
            else {}
        )
        if row is None or (row["is_forgotten"] and not (viewer.is_operator and any(bounds.values()))):
            raise NotFoundError(f"profile not forgotten: {describe(key)}: it does not exist; see salus profiles list")
        changed = {name: value for name, value in _EMPTY.items() if name not in ("version", "changed_utc_ns")}
        changed |= {"is_forgotten": True, "forgotten_utc_ns": now_utc_ns, "seen_utc_ns": row["seen_utc_ns"]}
        if not viewer.is_operator:
            changed |= bounds
        _add_version(connection, row, changed, now_utc_ns, viewer.user, "forgotten", "")
        connection.execute(update(PROFILES).where(PROFILES.c.id == row["id"]).values(changed))
        connection.execute(delete(RUNS).where(RUNS.c.profile_id == row["id"]))

    database.write(work)


def list_changes(
    database: Database,
    viewer: Viewer,
    *,
    signature: str | None = None,
    users: Iterable[str] = (),
    window: tuple[int, int] | None = None,
    count_max: int = 1000,
) -> list[ProfileChange]:
    """The history of the profiles that `viewer` may see, newest first."""
    wanted = (
        select(VERSIONS, PROFILES.c.user, PROFILES.c.signature, PROFILES.c.device_model)
        .add_columns(CLUSTERS.c.name.label("cluster"))
        .join(PROFILES, PROFILES.c.id == VERSIONS.c.profile_id)
        .join(CLUSTERS, CLUSTERS.c.id == PROFILES.c.cluster_id)
        .order_by(VERSIONS.c.changed_utc_ns.desc(), VERSIONS.c.profile_id, VERSIONS.c.version.desc())
        .limit(count_max)
    )
    if window is not None:
        wanted = wanted.where(VERSIONS.c.changed_utc_ns >= window[0], VERSIONS.c.changed_utc_ns < window[1])
    return _read(database, ProfileChange, wanted.where(*_visible(viewer, users, signature)))


def describe(key: ProfileKey) -> str:
    """The profile's name in messages."""
    return f"{key.signature} of {key.user} on {key.device_model} ({key.cluster})"


_EMPTY: Row = {
    column.name: None if column.nullable else "" if isinstance(column.type, String) else column.type.python_type()
    for column in PROFILES.columns
    if column.name not in ("id", "cluster_id", "user", "signature", "device_model")
}


def _visible(viewer: Viewer, users: Iterable[str], signature: str | None) -> list[ColumnElement[bool]]:
    """Conditions: profiles that `viewer` may see, only of `users` if there are any, only with `signature` if set."""
    conditions: list[ColumnElement[bool]] = []
    if not viewer.is_operator:
        conditions.append(PROFILES.c.user == viewer.user)
    if names := sorted(set(users)):
        conditions.append(PROFILES.c.user.in_(names))
    if signature is not None:
        conditions.append(PROFILES.c.signature == signature)
    return conditions


def _read(database: Database, kind: type[_Value], statement: Select[Any]) -> list[_Value]:
    with database.reading() as connection:
        rows = connection.execute(statement).mappings().all()
    # A column name may be a subclass of str, which msgspec does not accept as a key.
    values = [{str(name): value for name, value in row.items()} for row in rows]
    return [msgspec.convert(value | {"key": value}, kind) for value in values]


def _names(key: ProfileKey, cluster_id: int) -> Row:
    return {"cluster_id": cluster_id, **{name: getattr(key, name) for name in ("user", "signature", "device_model")}}


def _locked(connection: Connection, names: Row) -> Row | None:
    statement = select(PROFILES).where(*(PROFILES.c[name] == value for name, value in names.items()))
    row = connection.execute(statement.with_for_update()).mappings().first()
    return None if row is None else dict(row)


def _locked_or_new(connection: Connection, names: Row) -> Row:
    row = _locked(connection, names)
    if row is None:
        # An empty profile has version 0, so that the first change makes version 1.
        row = _EMPTY | names
        insert_rows(connection, PROFILES, list(row), [tuple(row.values())])
        row = _locked(connection, names)
        assert row is not None
    return row


def _record_run(connection: Connection, profile_id: int, job_row_id: int, measured: MeasurementRecord) -> bool:
    """Store the run's newest measurement; False if it is already stored."""
    target = (RUNS.c.profile_id == profile_id, RUNS.c.job_id == job_row_id)
    stored = connection.execute(select(RUNS).where(*target)).mappings().first()
    names = [column.name for column in RUNS.columns if column.name not in ("profile_id", "job_id")]
    values: Row = {name: getattr(measured, name) for name in names}
    if stored is None:
        connection.execute(insert(RUNS).values(profile_id=profile_id, job_id=job_row_id, **values))
        return True
    if measured.measured_utc_ns <= stored["measured_utc_ns"]:
        return False
    for name in ("persistent_bytes", "ephemeral_bytes", "iteration_count"):
        values[name] = max(values[name], stored[name])
    if values["solo_iteration_ns"] is None:
        values["solo_iteration_ns"] = stored["solo_iteration_ns"]
    connection.execute(update(RUNS).where(*target).values(values))
    return True


def _solo_iteration_ns(connection: Connection, profile_id: int) -> int | None:
    statement = (
        select(RUNS.c.solo_iteration_ns)
        .where(RUNS.c.profile_id == profile_id, RUNS.c.solo_iteration_ns.is_not(None))
        .order_by(RUNS.c.measured_utc_ns.desc())
        .limit(SOLO_RUNS_MAX)
    )
    times = sorted(connection.execute(statement).scalars())
    return times[(len(times) - 1) // 2] if times else None


def _update_hashes(row: Row, measured: MeasurementRecord, changed: Row) -> Cause:
    """Put the new hashes into `changed` and return the cause. A run that matches the stored hashes is not stale."""
    for name in ("boundary_rule", "model_hash", "input_hash"):
        changed[name] = clean_text(getattr(measured, name)) or row[name]
    if measured.stale_reason:
        changed["stale_reason"] = clean_text(measured.stale_reason)
        return "stale"
    if row["stale_reason"] and all(row[name] == changed[name] for name in ("model_hash", "input_hash")):
        changed["stale_reason"] = ""
        return "confirmed"
    return "measured"


def _add_version(
    connection: Connection, row: Row, changed: Row, now_utc_ns: int, changed_by: str, cause: Cause, detail: str
) -> None:
    changed["version"] = row["version"] + 1
    changed["changed_utc_ns"] = max(now_utc_ns, row["changed_utc_ns"])
    names = ("version", "persistent_bytes", "ephemeral_bytes", "solo_iteration_ns", "changed_utc_ns")
    values = {name: changed[name] for name in names} | {"profile_id": row["id"], "cause": cause}
    values |= {"changed_by": clean_text(changed_by), "detail": clean_text(detail, DETAIL_LENGTH_MAX)}
    connection.execute(insert(VERSIONS).values(values))


def _require_owner(viewer: Viewer, key: ProfileKey) -> None:
    if not viewer.is_operator and viewer.user != key.user:
        raise NotPermittedError(f"profile not changed: {describe(key)}: it belongs to {key.user}; ask an operator")


def _require_measured(row: Row, key: ProfileKey, persistent_bytes: int, ephemeral_bytes: int) -> None:
    too_low = [
        f"{kind} {value} bytes are below the measured {row[f'measured_{kind}_bytes']} bytes"
        for kind, value in (("persistent", persistent_bytes), ("ephemeral", ephemeral_bytes))
        if value < row[f"measured_{kind}_bytes"]
    ]
    if too_low:
        raise RequestError(
            f"profile not set: {describe(key)}: {' and '.join(too_low)}; "
            "if the program needs less now, use another --salus-profile or ask an operator to forget this one"
        )
