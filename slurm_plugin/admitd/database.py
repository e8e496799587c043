"""The accounting database as salus-admitd uses it: it reads profiles and writes decisions. Calls block.

The database is opened on first use. If it is missing or has another schema, every call raises OperatingError, and the
next call tries again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accounting.ingest.ledger import LedgerWriter
from accounting.profiles import list_profiles
from accounting.records import AdmissionRecord
from accounting.storage import schema
from accounting.storage.database import Database, open_database
from accounting.viewer import OPERATOR
from nodedaemon.config import Config
from nodedaemon.core.types import Profile


@dataclass(frozen=True, slots=True)
class ProfileLookup:
    """The stored profile of a job and its version; both are None if it was never measured or has been forgotten.

    `bound` has the measured sizes of a profile that its user has forgotten: a declaration cannot go below them.
    """

    profile: Profile | None = None
    version: int | None = None
    bound: Profile | None = None


class StoredRecords:
    """The database at `url`. Several threads may use it at once."""

    def __init__(self, url: str, password_file: str) -> None:
        self._url = url
        self._password_file = Path(password_file) if password_file else None
        self._lock = threading.Lock()
        self._database: Database | None = None

    def open(self) -> Database:
        with self._lock:
            if self._database is None:
                database = open_database(self._url, self._password_file)
                schema.require(database)
                self._database = database
            return self._database


class AdmissionDatabase(StoredRecords):
    """Two threads may use it at once, one that reads and one that writes."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.settings.storage.url, config.settings.storage.pass_file)
        self._cluster = config.settings.cluster.name
        self._writer: LedgerWriter | None = None

    def find(self, user: str, signature: str) -> ProfileLookup:
        """One profile for a job that may run on several device models: the largest value of each figure."""
        wanted: dict[str, Any] = {"cluster": self._cluster, "users": [user], "signature": signature}
        views = list_profiles(self.open(), OPERATOR, **wanted, with_forgotten=True)
        if not views:
            return ProfileLookup()
        profiles = [view.core() for view in views]
        largest = Profile(
            max(profile.persistent_bytes for profile in profiles),
            max(profile.ephemeral_bytes for profile in profiles),
            max((profile.iteration_ns for profile in profiles if profile.iteration_ns is not None), default=None),
            sum(profile.run_count for profile in profiles),
        )
        if all(view.is_forgotten for view in views):
            return ProfileLookup(bound=largest)
        return ProfileLookup(largest, max(view.version for view in views))

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
