"""Slurm's tree of accounts: read from its associations, kept with its newest word, and laid under a report's sums.

An account that no association names stands at the top, and so does one whose ancestors go round in a circle: two
readings of a tree that was changed in between may say so. Slurm's own `root` holds every tree and is no line.
"""

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, select, update

from accounting.records import AccountRecord, clean_text
from accounting.storage.catalog import CLUSTERS, Places, ensure_rows, table_of
from accounting.storage.models import AccountRow

ACCOUNTS = table_of(AccountRow)
ROOT = "root"

# Without a user: an association of an account itself, the only ones that name a parent.
SACCTMGR_FIELDS = "Cluster,Account,ParentName,User"
SACCTMGR_ARGUMENTS = ("-n", "-P", "show", "associations", f"format={SACCTMGR_FIELDS}")


def read_associations(text: str, *, now_utc_ns: int) -> list[AccountRecord]:
    """The accounts in what `sacctmgr -n -P show associations` prints; lines of users and others' words are left out."""
    found: dict[tuple[str, str], AccountRecord] = {}
    for line in text.splitlines():
        cells = [clean_text(cell.strip()) for cell in line.split("|")]
        if len(cells) != len(SACCTMGR_FIELDS.split(",")) or cells[3] or not cells[0] or not cells[1]:
            continue
        cluster, account, parent, _ = cells
        found[cluster, account] = AccountRecord(cluster=cluster, account=account, parent=parent, seen_utc_ns=now_utc_ns)
    return list(found.values())


def record_accounts(connection: Connection, places: Places, records: Sequence[AccountRecord]) -> None:
    """Keep the newest parent of each account."""
    if not records:
        return
    places.find_clusters(connection, (record.cluster for record in records))
    newest = {(r.cluster, r.account): r for r in sorted(records, key=lambda record: record.seen_utc_ns)}
    wanted = {(places.clusters[cluster], name): record for (cluster, name), record in newest.items()}
    rows = [
        {"cluster_id": number, "name": name, "parent": record.parent, "seen_utc_ns": record.seen_utc_ns}
        for (number, name), record in wanted.items()
    ]
    for stored in ensure_rows(connection, ACCOUNTS, ("cluster_id", "name"), rows):
        record = wanted[stored["cluster_id"], stored["name"]]
        if stored["seen_utc_ns"] < record.seen_utc_ns:
            change = {"parent": record.parent, "seen_utc_ns": record.seen_utc_ns}
            connection.execute(update(ACCOUNTS).where(ACCOUNTS.c.id == stored["id"]).values(change))


def parents_of(connection: Connection, clusters: Sequence[str]) -> dict[str, str]:
    """The account above each; of clusters that differ, the newest word. Those at the top are left out."""
    statement = select(ACCOUNTS.c.name, ACCOUNTS.c.parent).order_by(ACCOUNTS.c.seen_utc_ns, ACCOUNTS.c.id)
    if clusters:
        numbers = select(CLUSTERS.c.id).where(CLUSTERS.c.name.in_(clusters))
        statement = statement.where(ACCOUNTS.c.cluster_id.in_(numbers))
    parents = {row.name: row.parent for row in connection.execute(statement)}
    return {name: parent for name, parent in parents.items() if parent and parent != ROOT and name != ROOT}


def lineage(account: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    """The account and all above it, from the top down; alone where they go round in a circle."""
    line = [account]
    while (parent := parents.get(line[-1])) is not None:
        if parent in line:
            return (account,)
        line.append(parent)
    return tuple(reversed(line))


def children_of(accounts: Iterable[str], parents: Mapping[str, str]) -> dict[str | None, list[str]]:
    """The children of each account that lead to one of `accounts`, in order of name; of None, those at the top."""
    children: dict[str | None, set[str]] = {}
    for account in accounts:
        above: str | None = None
        for name in lineage(account, parents):
            children.setdefault(above, set()).add(name)
            above = name
    return {above: sorted(names) for above, names in children.items()}
