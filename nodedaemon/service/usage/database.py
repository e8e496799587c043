"""The accounting database behind the ledger, opened on first use: a daemon starts without it."""

from __future__ import annotations

from pathlib import Path

from accounting.ingest.ledger import LedgerWriter
from accounting.profiles import ProfileKey, find_profile
from accounting.records import Record
from accounting.storage.database import Database, open_database
from accounting.storage.schema import require, upgrade
from nodedaemon.core.errors import SalusError
from nodedaemon.service.usage.ledger import StoredProfile


class DatabaseStore:
    """Implements `ledger.Store`. With `is_owned`, for a user's own file, it creates and upgrades the schema."""

    def __init__(self, address: str, password_file: str = "", *, is_owned: bool = False) -> None:
        self._address = address
        self._password_file = password_file
        self._is_owned = is_owned
        self._database: Database | None = None
        self._writer: LedgerWriter | None = None

    def write(self, records: list[Record]) -> None:
        _, writer = self._open()
        writer.write(records)

    def find_profile(self, cluster: str, user: str, signature: str, model: str) -> StoredProfile | None:
        database, _ = self._open()
        key = ProfileKey(cluster=cluster, user=user, signature=signature, device_model=model)
        found = find_profile(database, key)
        if found is None or found.stale_reason:
            return None
        return StoredProfile(
            found.persistent_bytes,
            found.ephemeral_bytes,
            found.solo_iteration_ns,
            found.model_hash,
            found.input_hash,
            found.boundary_rule,
        )

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> tuple[Database, LedgerWriter]:
        if self._database is not None and self._writer is not None:
            return self._database, self._writer
        database = open_database(self._address, Path(self._password_file) if self._password_file else None)
        try:
            if self._is_owned:
                upgrade(database)
            require(database)
        except SalusError:
            database.close()
            raise
        self._database, self._writer = database, LedgerWriter(database)
        return self._database, self._writer
