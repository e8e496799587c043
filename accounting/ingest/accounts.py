"""Slurm's account tree: read from Slurm's associations, stored, and used to group a report.

An account without an association is shown at the top. So is an account whose ancestors form a cycle, which can happen
if the tree changed between two reads. Slurm's own `root` account is the parent of everything and is not shown.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, select, update

from accounting.records import AccountRecord, clean_text
from accounting.storage.catalog import RowCatalog, ensure_rows
from accounting.storage.tables import ACCOUNTS, CLUSTERS

ROOT = "root"

# Only the association of the account itself, which has no user, names a parent.
SACCTMGR_FIELDS = "Cluster,Account,ParentName,User"
SACCTMGR_ARGUMENTS = ("-n", "-P", "show", "associations", f"format={SACCTMGR_FIELDS}")


def read_associations(text: str, *, now_utc_ns: int) -> list[AccountRecord]:
    """The accounts in the output of `sacctmgr -n -P show associations`; user associations are skipped."""
    found: dict[tuple[str, str], AccountRecord] = {}
    for line in text.split("\n"):
        cells = [clean_text(cell.strip()) for cell in line.split("|")]
        if len(cells) != len(SACCTMGR_FIELDS.split(",")) or cells[3] or not cells[0] or not cells[1]:
            continue
        cluster, account, parent, _ = cells
        found[cluster, account] = AccountRecord(cluster=cluster, account=account, parent=parent, seen_utc_ns=now_utc_ns)
    return list(found.values())


def record_accounts(connection: Connection, catalog: RowCatalog, records: Sequence[AccountRecord]) -> None:
    """Store the newest parent of each account."""
    if not records:
        return
    catalog.find_clusters(connection, (record.cluster for record in records))
    newest = {(r.cluster, r.account): r for r in sorted(records, key=lambda record: record.seen_utc_ns)}
    wanted = {(catalog.clusters[cluster], name): record for (cluster, name), record in newest.items()}
    rows = [
        {"cluster_id": cluster_id, "name": name, "parent": record.parent, "seen_utc_ns": record.seen_utc_ns}
        for (cluster_id, name), record in wanted.items()
    ]
    for stored in ensure_rows(connection, ACCOUNTS, ("cluster_id", "name"), rows):
        record = wanted[stored["cluster_id"], stored["name"]]
        if stored["seen_utc_ns"] < record.seen_utc_ns:
            change = {"parent": record.parent, "seen_utc_ns": record.seen_utc_ns}
            connection.execute(update(ACCOUNTS).where(ACCOUNTS.c.id == stored["id"]).values(change))


def parents_of(connection: Connection, clusters: Sequence[str]) -> dict[str, str]:
    """The parent of each account that has one. If clusters differ, the parent that was read last wins."""
    statement = select(ACCOUNTS.c.name, ACCOUNTS.c.parent).order_by(ACCOUNTS.c.seen_utc_ns, ACCOUNTS.c.id)
    if clusters:
        ids = select(CLUSTERS.c.id).where(CLUSTERS.c.name.in_(clusters))
        statement = statement.where(ACCOUNTS.c.cluster_id.in_(ids))
    parents = {row.name: row.parent for row in connection.execute(statement)}
    return {name: parent for name, parent in parents.items() if parent and parent != ROOT and name != ROOT}


def lineage(account: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    """The account and all its ancestors, top first; only the account itself if they form a cycle."""
    line = [account]
    while (parent := parents.get(line[-1])) is not None:
        if parent in line:
            return (account,)
        line.append(parent)
    return tuple(reversed(line))


def children_of(accounts: Iterable[str], parents: Mapping[str, str]) -> dict[str | None, list[str]]:
    """The part of the tree that leads to `accounts`: each account's children by name. None maps to the top accounts."""
    children: dict[str | None, set[str]] = {}
    for account in accounts:
        above: str | None = None
        for name in lineage(account, parents):
            children.setdefault(above, set()).add(name)
            above = name
    return {above: sorted(names) for above, names in children.items()}
