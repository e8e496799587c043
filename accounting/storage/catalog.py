"""Row ids of clusters, nodes, devices and incarnations: looked up, or created on first use.

Records use names; rows refer to each other by id. An id never changes once its row is committed, so a writer may cache
it. Ids from a transaction that was rolled back must be dropped with it.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, select, tuple_, update

from accounting.records import DeviceRecord, IncarnationRecord, clean_text
from accounting.storage.database import chunks, insert_rows
from accounting.storage.tables import CLUSTERS, DEVICES, INCARNATIONS, NODES

Row = dict[str, Any]
_Name = TypeVar("_Name", bound=Hashable)


@dataclass
class RowCatalog:
    """Cached ids: cluster by name, node by (cluster, node), device by (cluster, node, uuid)."""

    clusters: dict[str, int] = field(default_factory=dict)
    nodes: dict[tuple[str, str], int] = field(default_factory=dict)
    devices: dict[tuple[str, str, str], int] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "RowCatalog":
        return RowCatalog(dict(self.clusters), dict(self.nodes), dict(self.devices), dict(self.incarnations))

    def find_clusters(self, connection: Connection, names: Iterable[str]) -> None:
        missing = sorted(set(names) - self.clusters.keys())
        _ensure(connection, CLUSTERS, ("name",), {(name,): name for name in missing}, self.clusters)

    def find_nodes(self, connection: Connection, names: Iterable[tuple[str, str]]) -> None:
        missing = sorted(set(names) - self.nodes.keys())
        self.find_clusters(connection, (cluster for cluster, _ in missing))
        wanted = {(self.clusters[cluster], node): (cluster, node) for cluster, node in missing}
        _ensure(connection, NODES, ("cluster_id", "name"), wanted, self.nodes)

    def find_devices(self, connection: Connection, names: Iterable[tuple[str, str, str]]) -> None:
        missing = sorted(set(names) - self.devices.keys())
        self.find_nodes(connection, ((cluster, node) for cluster, node, _ in missing))
        wanted = {(self.nodes[cluster, node], uuid): (cluster, node, uuid) for cluster, node, uuid in missing}
        _ensure(connection, DEVICES, ("node_id", "uuid"), wanted, self.devices, _EMPTY_DEVICE)

    def find_incarnations(self, connection: Connection, names: Iterable[tuple[str, str, str]]) -> None:
        """`names` are (cluster, node, incarnation)."""
        missing = {name[2]: name[:2] for name in sorted(set(names)) if name[2] not in self.incarnations}
        self.find_nodes(connection, missing.values())
        rows = [
            {"node_id": self.nodes[node], "name": name, "boot_id": "", "version": ""} for name, node in missing.items()
        ]
        for row in ensure_rows(connection, INCARNATIONS, ("name",), rows):
            self.incarnations[row["name"]] = row["id"]

    def record_devices(self, connection: Connection, records: Sequence[DeviceRecord]) -> None:
        """Store the newest description of each device."""
        self.find_devices(connection, ((r.cluster, r.node, r.device) for r in records))
        for record in records:
            statement = (
                update(DEVICES)
                .where(DEVICES.c.id == self.devices[record.cluster, record.node, record.device])
                .where(DEVICES.c.seen_utc_ns <= record.seen_utc_ns)
                .values(
                    position=record.index,
                    model=clean_text(record.model),
                    capacity_bytes=record.capacity_bytes,
                    lane_reserve_bytes=record.lane_reserve_bytes,
                    seen_utc_ns=record.seen_utc_ns,
                )
            )
            connection.execute(statement)

    def record_incarnations(self, connection: Connection, records: Sequence[IncarnationRecord]) -> None:
        """Store when each incarnation started and, once it is known, when it stopped."""
        self.find_incarnations(connection, ((r.cluster, r.node, r.incarnation) for r in records))
        for record in records:
            values: Row = {
                "boot_id": clean_text(record.boot_id),
                "version": clean_text(record.version),
                "started_utc_ns": record.started_utc_ns,
                "started_mono_ns": record.started_mono_ns,
            }
            if record.stopped_utc_ns is not None:
                values["stopped_utc_ns"] = record.stopped_utc_ns
            target = INCARNATIONS.c.id == self.incarnations[record.incarnation]
            connection.execute(update(INCARNATIONS).where(target).values(values))


_EMPTY_DEVICE = {"position": 0, "model": "", "capacity_bytes": 0, "lane_reserve_bytes": 0, "seen_utc_ns": 0}


def _ensure(
    connection: Connection,
    table: Table,
    keys: tuple[str, ...],
    wanted: Mapping[tuple[Any, ...], _Name],
    ids: dict[_Name, int],
    defaults: Row | None = None,
) -> None:
    """Put into `ids` the row ids of `wanted`, which maps key values to names."""
    rows = [dict(zip(keys, values, strict=True)) | (defaults or {}) for values in wanted]
    for row in ensure_rows(connection, table, keys, rows):
        ids[wanted[tuple(row[key] for key in keys)]] = row["id"]


def find_rows(connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """The stored rows whose `keys` equal those of one of `rows`."""
    found: list[Row] = []
    columns = tuple_(*(table.c[key] for key in keys))
    for part in chunks(rows):
        condition = columns.in_([tuple(row[key] for key in keys) for row in part])
        found.extend(dict(row) for row in connection.execute(select(table).where(condition)).mappings())
    return found


def ensure_rows(connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Insert the rows that are missing and return all of them as stored."""
    stored = {tuple(row[key] for key in keys) for row in find_rows(connection, table, keys, rows)}
    missing = [row for row in rows if tuple(row[key] for key in keys) not in stored]
    if missing:
        names = list(missing[0])
        insert_rows(connection, table, names, [tuple(row[name] for name in names) for row in missing], keys=keys)
    return find_rows(connection, table, keys, rows)
