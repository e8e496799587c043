"""Profiles: maxima, versions with a cause, and permissions."""

import pytest

from accounting.ingest.ledger import LedgerWriter
from accounting.profiles import (
    ProfileKey,
    ProfileView,
    find_profile,
    forget_profile,
    list_changes,
    list_profiles,
    set_profile,
)
from accounting.records import MeasurementRecord
from accounting.storage.database import Database
from accounting.viewer import Viewer
from nodedaemon.core.errors import RequestError
from nodedaemon.wire.envelope import NotFoundError, NotPermittedError
from tests.support.scenario import MIB, MODEL, T0, S, dump, key

ADA, BEN = Viewer(uid=1001, user="ada"), Viewer(uid=1002, user="ben")
ROOT = Viewer(uid=0, user="root", is_operator=True)
KEY = ProfileKey(cluster="alpha", user="ada", signature="cnn", device_model=MODEL)


def measured(job: int, second: int, persistent: int, ephemeral: int, **more: object) -> MeasurementRecord:
    values: dict[str, object] = {"model_hash": "m1", "input_hash": "x1", "solo_iteration_ns": S, **more}
    return MeasurementRecord(
        job=key(job), user="ada", signature="cnn", device_model=MODEL, measured_utc_ns=T0 + second * S,
        persistent_bytes=persistent * MIB, ephemeral_bytes=ephemeral * MIB, **values,
    )  # fmt: skip


def learned(database: Database, *records: MeasurementRecord) -> ProfileView:
    LedgerWriter(database).write(list(records))
    found = find_profile(database, KEY)
    assert found is not None
    return found


def sizes(profile: ProfileView) -> tuple[int, int]:
    return profile.persistent_bytes // MIB, profile.ephemeral_bytes // MIB


def test_maxima_only_grow_and_each_rise_is_a_version(database: Database) -> None:
    assert learned(database, measured(1, 1, 100, 50)).version == 1
    assert sizes(learned(database, measured(2, 2, 80, 60))) == (100, 60)
    found = learned(database, measured(3, 3, 90, 40))
    assert (sizes(found), found.version, found.run_count) == ((100, 60), 2, 3)
    assert [change.cause for change in list_changes(database, ADA)] == ["measured", "measured"]


def test_a_replayed_measurement_changes_nothing(database: Database) -> None:
    runs = [measured(1, 1, 100, 50), measured(1, 5, 120, 50), measured(2, 6, 90, 70)]
    learned(database, *runs)
    before = dump(database)
    learned(database, *reversed(runs))
    assert dump(database) == before


def test_the_solo_time_is_the_median_of_the_last_runs(database: Database) -> None:
    runs = [measured(job, job, 1, 1, solo_iteration_ns=job * 10) for job in range(1, 31)]
    # Runs 6 to 30 are the last 25; their median is run 18.
    assert learned(database, *runs).solo_iteration_ns == 180
    assert learned(database, measured(40, 40, 1, 1, solo_iteration_ns=None)).solo_iteration_ns == 180


def test_a_user_cannot_set_less_than_was_measured(database: Database) -> None:
    learned(database, measured(1, 1, 100, 50))
    with pytest.raises(RequestError, match=r"persistent .* are below the measured .*ask an operator to forget"):
        set_profile(database, ADA, KEY, persistent_bytes=99 * MIB, ephemeral_bytes=50 * MIB, now_utc_ns=T0 + 9 * S)
    found = set_profile(database, ADA, KEY, persistent_bytes=200 * MIB, ephemeral_bytes=50 * MIB, now_utc_ns=T0 + 9 * S)
    assert (sizes(found), found.version) == ((200, 50), 2)
    assert "set by hand" in found.why()
    assert sizes(learned(database, measured(2, 20, 250, 10))) == (250, 50)
    assert [change.changed_by for change in list_changes(database, ADA)] == ["salus", "ada", "salus"]


def test_a_user_manages_their_own_profiles_and_an_operator_all(database: Database) -> None:
    learned(database, measured(1, 1, 100, 50))
    assert list_profiles(database, BEN) == []
    assert list_changes(database, BEN) == []
    with pytest.raises(NotPermittedError):
        set_profile(database, BEN, KEY, persistent_bytes=1 << 40, ephemeral_bytes=1 << 40, now_utc_ns=T0)
    with pytest.raises(NotPermittedError):
        forget_profile(database, BEN, KEY, now_utc_ns=T0)
    assert [view.key for view in list_profiles(database, ROOT)] == [KEY]
    set_profile(database, ROOT, KEY, persistent_bytes=300 * MIB, ephemeral_bytes=50 * MIB, now_utc_ns=T0 + 9 * S)


def test_two_users_with_one_signature_have_separate_profiles(database: Database) -> None:
    learned(database, measured(1, 1, 100, 50))
    other = ProfileKey(cluster="alpha", user="ben", signature="cnn", device_model=MODEL)
    assert find_profile(database, other) is None


def test_a_forgotten_profile_is_unknown_until_a_later_run(database: Database) -> None:
    learned(database, measured(1, 1, 100, 50))
    forget_profile(database, ADA, KEY, now_utc_ns=T0 + 10 * S)
    assert find_profile(database, KEY) is None
    LedgerWriter(database).write([measured(1, 1, 100, 50), measured(1, 9, 100, 50)])
    assert find_profile(database, KEY) is None
    assert [view.is_forgotten for view in list_profiles(database, ADA, with_forgotten=True)] == [True]
    with pytest.raises(NotFoundError):
        forget_profile(database, ADA, KEY, now_utc_ns=T0 + 11 * S)
    found = learned(database, measured(2, 20, 30, 10))
    assert (sizes(found), found.run_count, found.version) == ((100, 50), 1, 3)


def test_what_was_measured_bounds_every_value_that_a_user_sets_after_forgetting(database: Database) -> None:
    learned(database, measured(1, 1, 100, 50))
    set_profile(database, ADA, KEY, persistent_bytes=200 * MIB, ephemeral_bytes=60 * MIB, now_utc_ns=T0 + 5 * S)
    forget_profile(database, ADA, KEY, now_utc_ns=T0 + 10 * S)
    (forgotten,) = list_profiles(database, ADA, with_forgotten=True)
    assert sizes(forgotten) == (100, 50)
    for persistent, ephemeral in ((1, 1), (99, 50), (100, 49)):
        with pytest.raises(RequestError, match="below the measured"):
            set_profile(
                database, ADA, KEY, persistent_bytes=persistent * MIB, ephemeral_bytes=ephemeral * MIB,
                now_utc_ns=T0 + 11 * S, cause="imported",
            )  # fmt: skip
    found = set_profile(
        database, ADA, KEY, persistent_bytes=100 * MIB, ephemeral_bytes=50 * MIB, now_utc_ns=T0 + 12 * S
    )
    assert sizes(found) == (100, 50)


@pytest.mark.parametrize("is_forgotten_by_owner", [False, True])
def test_an_operator_forgets_what_was_measured_too(database: Database, is_forgotten_by_owner: bool) -> None:
    learned(database, measured(1, 1, 100, 50))
    if is_forgotten_by_owner:
        forget_profile(database, ADA, KEY, now_utc_ns=T0 + 9 * S)
    forget_profile(database, ROOT, KEY, now_utc_ns=T0 + 10 * S)
    with pytest.raises(NotFoundError):
        forget_profile(database, ROOT, KEY, now_utc_ns=T0 + 11 * S)
    assert sizes(learned(database, measured(2, 20, 30, 10))) == (30, 10)


def test_the_first_run_that_matches_again_clears_the_stale_mark(database: Database) -> None:
    learned(database, measured(1, 1, 100, 50))
    stale = learned(database, measured(2, 2, 100, 50, model_hash="m2", stale_reason="model changed"))
    assert (stale.stale_reason, stale.model_hash) == ("model changed", "m2")
    assert "stale: model changed" in stale.why()
    fresh = learned(database, measured(3, 3, 100, 50, model_hash="m2"))
    assert fresh.stale_reason == ""
    assert [change.cause for change in list_changes(database, ADA)] == ["confirmed", "stale", "measured"]


def test_admission_can_list_what_changed_since(database: Database) -> None:
    learned(database, measured(1, 100, 100, 50))
    since = list_profiles(database, ROOT, changed_from_utc_ns=T0 + 101 * S)
    assert since == []
    assert len(list_profiles(database, ROOT, changed_from_utc_ns=T0 + 100 * S)) == 1
