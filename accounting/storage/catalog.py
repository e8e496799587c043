"""Numbers of clusters, nodes, devices and incarnations: found, or made on first sight.

A record names them as people do; rows refer to them by number. A number never changes once its row is committed, so a
writer may remember it; numbers that an aborted transaction made are forgotten with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sqlalchemy import Connection, Table, select, tuple_, update

from accounting.records import DeviceRecord, IncarnationRecord, clean_text
from accounting.storage.database import insert_rows
from accounting.storage.models import Base, ClusterRow, DeviceRow, IncarnationRow, NodeRow

# Bound parameters of one statement: far below the limit of each database.
CHUNK = 500

Row = dict[str, Any]


def table_of(model: type[Base]) -> Table:
    """The table of a mapping; the stores speak SQL expressions, not sessions of an ORM."""
    return cast(Table, model.__table__)


CLUSTERS, NODES = table_of(ClusterRow), table_of(NodeRow)
DEVICES, INCARNATIONS = table_of(DeviceRow), table_of(IncarnationRow)


@dataclass
class Places:
    """What is known of numbers: cluster by name, node by (cluster, node), device by (cluster, node, uuid)."""

    clusters: dict[str, int] = field(default_factory=dict)
    nodes: dict[tuple[str, str], int] = field(default_factory=dict)
    devices: dict[tuple[str, str, str], int] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)

    def copy(self) -> "Places":
        return Places(dict(self.clusters), dict(self.nodes), dict(self.devices), dict(self.incarnations))

    def find_clusters(self, connection: Connection, names: Iterable[str]) -> None:
        missing = sorted({name for name in names if name not in self.clusters})
        if missing:
            for row in ensure_rows(connection, CLUSTERS, ("name",), [{"name": name} for name in missing]):
                self.clusters[row["name"]] = row["id"]

    def find_nodes(self, connection: Connection, names: Iterable[tuple[str, str]]) -> None:
        missing = sorted({name for name in names if name not in self.nodes})
        if not missing:
            return
        self.find_clusters(connection, (cluster for cluster, _ in missing))
        by_number = {(self.clusters[cluster], node): (cluster, node) for cluster, node in missing}
        wanted = [{"cluster_id": cluster_id, "name": node} for cluster_id, node in by_number]
        for row in ensure_rows(connection, NODES, ("cluster_id", "name"), wanted):
            self.nodes[by_number[row["cluster_id"], row["name"]]] = row["id"]

    def find_devices(self, connection: Connection, names: Iterable[tuple[str, str, str]]) -> None:
        missing = sorted({name for name in names if name not in self.devices})
        if not missing:
            return
        self.find_nodes(connection, ((cluster, node) for cluster, node, _ in missing))
        by_number = {(self.nodes[cluster, node], uuid): (cluster, node, uuid) for cluster, node, uuid in missing}
        wanted = [{"node_id": node_id, "uuid": uuid, **_EMPTY_DEVICE} for node_id, uuid in by_number]
        for row in ensure_rows(connection, DEVICES, ("node_id", "uuid"), wanted):
            self.devices[by_number[row["node_id"], row["uuid"]]] = row["id"]

    def find_incarnations(self, connection: Connection, names: Iterable[tuple[str, str, str]]) -> None:
        """`names` are (cluster, node, incarnation)."""
        missing = {name[2]: name[:2] for name in sorted(set(names)) if name[2] not in self.incarnations}
        if not missing:
            return
        self.find_nodes(connection, missing.values())
        wanted = [
            {"node_id": self.nodes[node], "name": name, "boot_id": "", "version": ""} for name, node in missing.items()
        ]
        for row in ensure_rows(connection, INCARNATIONS, ("name",), wanted):
            self.incarnations[row["name"]] = row["id"]

    def record_devices(self, connection: Connection, records: Sequence[DeviceRecord]) -> None:
        """Keep the newest description of each device."""
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
        """Keep start and, once it is known, end of each life of a daemon."""
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


def find_rows(connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """The stored rows whose `keys` equal those of one of `rows`."""
    found: list[Row] = []
    columns = [table.c[key] for key in keys]
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        if len(keys) == 1:
            condition = columns[0].in_([row[keys[0]] for row in part])
        else:
            condition = tuple_(*columns).in_([tuple(row[key] for key in keys) for row in part])
        found.extend(dict(row) for row in connection.execute(select(table).where(condition)).mappings())
    return found


def ensure_rows(connection: Connection, table: Table, keys: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Make the rows that are missing and return all of them as they are stored."""
    known = {tuple(row[key] for key in keys) for row in find_rows(connection, table, keys, rows)}
    missing = [row for row in rows if tuple(row[key] for key in keys) not in known]
    if missing:
        names = list(missing[0])
        insert_rows(connection, table, names, [tuple(row[name] for name in names) for row in missing], keys=keys)
    return find_rows(connection, table, keys, rows)
