"""The accounting database as salus-admitd uses it: it reads profiles and writes decisions. Calls block.

The database is opened on first use. If it is missing or has another schema, every call raises OperatingError, and the
next call tries again.
"""

from __future__ import annotations

import threading
from pathlib import Path

from accounting.ingest.ledger import LedgerWriter
from accounting.profiles import list_profiles
from accounting.records import AdmissionRecord
from accounting.storage import schema
from accounting.storage.database import Database, open_database
from accounting.viewer import Viewer
from nodedaemon.config import Config
from nodedaemon.core.types import Profile
from slurm_plugin.admitd.decision import ProfileLookup

OPERATOR = Viewer(uid=0, user="root", is_operator=True)


class AdmissionDatabase:
    """Two threads may use it at once, one that reads and one that writes."""

    def __init__(self, config: Config) -> None:
        self._cluster = config.settings.cluster.name
        self._storage = config.settings.storage
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._writer: LedgerWriter | None = None

    def open(self) -> Database:
        with self._lock:
            if self._database is None:
                password = Path(self._storage.pass_file) if self._storage.pass_file else None
                database = open_database(self._storage.url, password)
                schema.require(database)
                self._database = database
            return self._database

    def find(self, user: str, signature: str) -> ProfileLookup:
        views = list_profiles(self.open(), OPERATOR, cluster=self._cluster, users=[user], signature=signature)
        return largest([(view.core(), view.version) for view in views])

    def has_changed(self, since_utc_ns: int) -> bool:
        return bool(
            list_profiles(
                self.open(), OPERATOR, cluster=self._cluster, changed_from_utc_ns=since_utc_ns, with_forgotten=True
            )
        )

    def write(self, records: list[AdmissionRecord]) -> None:
        if self._writer is None:
            self._writer = LedgerWriter(self.open())
        self._writer.write(records)


def largest(profiles: list[tuple[Profile, int]]) -> ProfileLookup:
    """One profile for a job that may run on several device models: the largest of each figure."""
    if not profiles:
        return ProfileLookup()
    times = [profile.iteration_ns for profile, _ in profiles if profile.iteration_ns is not None]
    return ProfileLookup(
        Profile(
            max(profile.persistent_bytes for profile, _ in profiles),
            max(profile.ephemeral_bytes for profile, _ in profiles),
            max(times, default=None),
            sum(profile.run_count for profile, _ in profiles),
        ),
        max(version for _, version in profiles),
    )
