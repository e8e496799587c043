"""The accounting database behind the ledger, opened on first use: a daemon starts without it."""

from __future__ import annotations

from pathlib import Path

from accounting.ingest.ledger import LedgerWriter
from accounting.profiles import ProfileKey, ProfileView, find_profile
from accounting.records import Record
from accounting.storage.database import Database, open_database
from accounting.storage.schema import require, upgrade
from nodedaemon.config.keys import Storage
from nodedaemon.core.errors import SalusError


class DatabaseStore:
    """Implements `ledger.Store`. `is_owned`: it creates and upgrades the schema of a user's own file."""

    def __init__(self, storage: Storage, profile_cluster: str, *, is_owned: bool) -> None:
        self._storage = storage
        self._profile_cluster = profile_cluster
        self._is_owned = is_owned
        self._database: Database | None = None
        self._writer: LedgerWriter | None = None

    def write(self, records: list[Record]) -> None:
        _, writer = self._open()
        writer.write(records)

    def find_profile(self, user: str, signature: str, model: str) -> ProfileView | None:
        database, _ = self._open()
        key = ProfileKey(cluster=self._profile_cluster, user=user, signature=signature, device_model=model)
        found = find_profile(database, key)
        return None if found is None or found.stale_reason else found

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> tuple[Database, LedgerWriter]:
        if self._database is not None and self._writer is not None:
            return self._database, self._writer
        database = open_database(self._storage.url, Path(self._storage.pass_file) if self._storage.pass_file else None)
        try:
            if self._is_owned:
                upgrade(database)
            require(database)
        except SalusError:
            database.close()
            raise
        self._database, self._writer = database, LedgerWriter(database)
        return self._database, self._writer
