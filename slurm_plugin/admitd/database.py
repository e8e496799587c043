"""Admission's view of the accounting database: profiles of a signature, decisions to keep. Opened on first use.

A database that is not there yet, or not in this Salus's schema, is an OperatingError each time, and asked again later.
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
from slurm_plugin.admitd.decision import ProfileLookup
from slurm_plugin.admitd.profile_cache import largest

OPERATOR = Viewer(uid=0, user="root", is_operator=True)


class DatabaseRecords:
    """Reads and writes may come from two threads at once; the writer is used by one of them only."""

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
        found = list_profiles(self.open(), OPERATOR, cluster=self._cluster, users=[user], signature=signature)
        return largest([(view.core(), view.version) for view in found])

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
