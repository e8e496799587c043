"""Finds values that are valid on their own but contradict each other. One function per rule; all rules run."""

from urllib.parse import urlsplit

from nodedaemon.config.choices import DeviceType, ShareMode
from nodedaemon.config.finding import Findings, Place, shown
from nodedaemon.config.keys import Settings
from nodedaemon.config.kinds import Size
from nodedaemon.config.records import KEYS, Config, ConfiguredDevice, Record, Value, value_in
from nodedaemon.config.spec import Scope
from nodedaemon.core.types import LaneSharing

SQLITE = "sqlite"
PORT_KEYS = {"AdmissionPort", "MetricsPort", "AdmissionMetricsPort"}
SOCKET_KEYS = {"AdmissionSocket", "DaemonSocket", "ControlSocket"}
# Stands for all nodes that no record names.
ANY_NODE = "*"


def contradictions(config: Config, findings: Findings) -> None:
    """Add the contradictions in `config` to `findings`."""
    _check_storage(config, findings)
    _check_ports_and_sockets(config, findings)
    _check_partitions(config, findings)
    for record in config.records:
        if record.scope is Scope.DEVICE:
            _check_device_fields(record, findings)
    for node in _representatives(config):
        _check_node(config, node, findings)


def lane_reserve_problem(settings: Settings, capacity_bytes: int) -> str | None:
    """Why this LaneReserve is impossible on a device of that size; None if it is possible."""
    reserve_bytes = settings.lanes.lane_reserve_bytes
    size = Size()
    if reserve_bytes is not None and reserve_bytes >= capacity_bytes:
        return (
            f"{size.write(reserve_bytes)} leaves no memory for the jobs themselves on a device of "
            f"{size.write(capacity_bytes)}; make it smaller or auto"
        )
    if capacity_bytes - (reserve_bytes or 0) < settings.lanes.shard_unit_bytes:
        return (
            f"it leaves less than one ShardUnit ({size.write(settings.lanes.shard_unit_bytes)}) of a device of "
            f"{size.write(capacity_bytes)}; make it smaller or auto"
        )
    return None


def _check_storage(config: Config, findings: Findings) -> None:
    url_value, pass_value = config.values.get("StorageUrl"), config.values.get("StoragePassFile")
    url = config.settings.storage.url
    try:
        parts = urlsplit(url)
        scheme, has_password = parts.scheme.partition("+")[0], parts.password is not None
    except ValueError:
        scheme, has_password = "", False
    if url_value is not None:
        if scheme not in (SQLITE, "postgresql", "mysql", "mariadb"):
            findings.contradict(
                url_value.place,
                "StorageUrl",
                "must be a sqlite, postgresql+psycopg, mysql+pymysql or mariadb+pymysql URL",
            )
        if has_password:
            # Do not repeat the text: findings end up in logs.
            findings.contradict(url_value.place, "StorageUrl", "contains a password; put it into StoragePassFile")
    if pass_value is not None and pass_value.value and scheme == SQLITE:
        findings.contradict(pass_value.place, "StoragePassFile", "does not apply to SQLite; remove it", "StorageUrl")
    nodes = config.node_names()
    if scheme == SQLITE and len(nodes) > 1 and not config.settings.cluster.is_single_host:
        place = url_value.place if url_value else next(item for item in config.records if item.nodes).place
        findings.contradict(
            place,
            "StorageUrl",
            f"SQLite allows writers on one host only, but there are {len(nodes)} nodes; use PostgreSQL or MariaDB, "
            "or set SingleHost=yes if all nodes run on this machine",
            "SingleHost",
        )


def _check_ports_and_sockets(config: Config, findings: Findings) -> None:
    for names in (PORT_KEYS, SOCKET_KEYS):
        seen: dict[object, str] = {}
        for key in (key for key in KEYS if key.name in names):
            value = value_in(config.settings, key)
            if value and value in seen:
                place = (config.values.get(key.name) or config.values[seen[value]]).place
                problem = f"is the same as {seen[value]} ({shown(str(value))}); give each its own"
                findings.contradict(place, key.name, problem, seen[value])
            seen.setdefault(value, key.name)


def _check_partitions(config: Config, findings: Findings) -> None:
    """A partition that sets a node key must name its nodes, and no node may get two values."""
    owners: dict[tuple[str, str], tuple[Value, Record]] = {}
    settled = {
        (node, name)
        for record in config.records
        if record.scope is Scope.NODE
        for node in record.names
        for name in record.values
    }
    partitions = [record for record in config.records if record.scope is Scope.PARTITION]
    # Records for all nodes first, so that the others are compared with them.
    for record in sorted(partitions, key=lambda item: item.nodes is not None):
        for value in record.values.values():
            name = value.key.name
            if Scope.NODE not in value.key.scopes:
                continue
            if record.nodes == frozenset():
                findings.contradict(
                    value.place, name, f"applies to nodes, but {shown(record.title)} names none; add Nodes=", "Nodes"
                )
            for node in (ANY_NODE,) if record.nodes is None else sorted(record.nodes):
                other = owners.get((ANY_NODE, name)) or owners.setdefault((node, name), (value, record))
                if other[0].value != value.value and (node, name) not in settled:
                    findings.contradict(
                        value.place,
                        name,
                        f"{node} is also in {shown(other[1].title)} ({other[0].place}), which says "
                        f"{value.key.kind.write(other[0].value)}; set it in a NodeName record",
                    )
                    break


def _check_device_fields(record: Record, findings: Findings) -> None:
    fields = {name: value.value for name, value in record.fields.items()}
    is_host = fields["Type"] is DeviceType.HOST
    if is_host and "Memory" not in fields:
        findings.contradict(record.place, "Memory", "is missing; a host device is a slice of memory such as Memory=2G")
    for name, belongs_to_host in (("Cores", True), ("Uuid", False)):
        if name in fields and belongs_to_host != is_host:
            findings.contradict(record.fields[name].place, name, f"does not apply to a device of type {fields['Type']}")
    if "Uuid" in fields and len(record.names) > 1:
        findings.contradict(record.fields["Uuid"].place, "Uuid", "names one device; write a record for each")


def _representatives(config: Config) -> list[str]:
    """One node per combination of records: nodes with the same records need only one check."""
    lines_of_node: dict[str, list[int]] = {ANY_NODE: []}
    for position, record in enumerate(config.records):
        for node in record.nodes or ():
            lines_of_node.setdefault(node, []).append(position)
    return list({tuple(lines): node for node, lines in reversed(lines_of_node.items())}.values())


def _check_node(config: Config, node: str, findings: Findings) -> None:
    settings = config.for_node(node)
    place = _place_of(config, node, "HangTimeout", "IdleRelease")
    if place and settings.gate.hang_timeout_ns <= settings.gate.idle_release_ns:
        findings.contradict(
            place,
            "HangTimeout",
            "is not longer than IdleRelease, so an idle session would count as hung",
            "IdleRelease",
        )
    owners: dict[int, str] = {}
    for device in config.devices_of(node):
        if findings.is_full:
            return
        _check_device(config, node, device, findings)
        for core in device.cores:
            owner = owners.setdefault(core, device.name)
            if owner != device.name:
                problem = f"core {core} already belongs to {shown(owner)}; give each device its own cores"
                findings.contradict(device.record.fields["Cores"].place, "Cores", problem)
                break
    _check_share_mode(settings, _place_of(config, node, "ShareMode", "LaneSharing"), findings)


def _check_device(config: Config, node: str, device: ConfiguredDevice, findings: Findings) -> None:
    values = device.record.values
    if "ShareMode" in values:
        _check_share_mode(device.settings, values["ShareMode"].place, findings)
    if device.type is not DeviceType.HOST or not device.memory_bytes:
        return
    problem = lane_reserve_problem(device.settings, device.memory_bytes)
    if problem is None:
        return
    text = f"on {shown(device.name)} ({device.record.place}): {problem}"
    if "LaneReserve" in values:
        findings.add(values["LaneReserve"].place, "LaneReserve", text)
    else:
        place = _place_of(config, node, "LaneReserve", "ShardUnit") or device.record.place
        findings.contradict(place, "LaneReserve", text, "ShardUnit")


def _check_share_mode(settings: Settings, place: Place | None, findings: Findings) -> None:
    if place and settings.daemon.share_mode is ShareMode.MPS and settings.lanes.sharing is not LaneSharing.USER:
        findings.contradict(
            place, "ShareMode", "mps serves one user at a time and needs LaneSharing=user", "LaneSharing"
        )


def _place_of(config: Config, node: str, *names: str) -> Place | None:
    """The line that sets one of these keys for `node`. None if all are defaults, which never contradict."""
    values = config.values_for_node(node)
    return next(
        (found.place for name in names for found in (values.get(name) or config.values.get(name),) if found), None
    )
