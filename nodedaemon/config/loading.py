"""Loads a configuration file into a `Config`, or reports everything that is wrong with it.

`load` raises only if the file cannot be read. For any content the result is a `Config` or `Rejected`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodedaemon.config import hostlist
from nodedaemon.config.check import contradictions
from nodedaemon.config.finding import Finding, Findings, Place, nearest_of, shown
from nodedaemon.config.grammar import Reader, Scan, Setting, read_file
from nodedaemon.config.records import ALL_NODES, FIELDS, KEYS, Config, Record, Value, settings_of
from nodedaemon.config.spec import Key, Scope, by_folded_name, keys_of
from nodedaemon.core.errors import RequestError

SYSTEM_FILE = Path("/etc/salus/salus.conf")
FILE_VARIABLE = "SALUS_CONF"

# Names in all records together. One list has its own limit, but a file may hold thousands of lists.
NAME_COUNT_MAX = 131_072

_KEYS = by_folded_name(KEYS)
_OPENERS: Mapping[str, Scope] = {scope.casefold(): scope for scope in Scope}
_FIELD_KEYS: Mapping[Scope, Mapping[str, Key]] = {
    scope: by_folded_name(keys_of(group)) for scope, group in FIELDS.items()
}
_ALLOWED: Mapping[Scope, Mapping[str, Key]] = {
    scope: {**by_folded_name(tuple(key for key in KEYS if scope in key.scopes)), **_FIELD_KEYS[scope]}
    for scope in Scope
}


class UnreadableError(RequestError):
    """The configuration file cannot be read."""


@dataclass(frozen=True)
class Rejected:
    """A file that cannot be used, with all findings in the order of its lines."""

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return "\n".join(str(finding) for finding in self.findings)


def locate(explicit: Path | None = None, environment: Mapping[str, str] | None = None) -> Path | None:
    """The first of these files: `explicit`, SALUS_CONF, /etc/salus/salus.conf, the one next to the installation.

    None if there is none; then the built-in defaults apply.
    """
    variable = (os.environ if environment is None else environment).get(FILE_VARIABLE)
    if explicit is not None or variable:
        return explicit or Path(variable or "")
    installed = Path(__file__).resolve().parents[2] / "etc" / "salus.conf"
    return next((path for path in (SYSTEM_FILE, installed) if path.is_file()), None)


def load(path: Path | None, read: Reader = read_file) -> Config | Rejected:
    """Read `path` and its includes. None gives the defaults. Raises UnreadableError if `path` cannot be read."""
    if path is None:
        return Config(settings_of({}))
    try:
        data = read(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnreadableError(f"configuration: {path}: {reason}; name another with -f") from error
    return parse(path, data, read)


def load_or_raise(path: Path | None) -> Config:
    """Like `load`, but raises a RequestError that lists all findings of the file."""
    loaded = load(path)
    if isinstance(loaded, Rejected):
        raise RequestError(f"configuration: {path}: cannot be used; correct it and run salus config check\n{loaded}")
    return loaded


def parse(path: Path, data: bytes, read: Reader = read_file) -> Config | Rejected:
    """Parse `data`, the content of `path`. `read` reads the files that it includes."""
    findings = Findings()
    scan = Scan(read, findings)
    draft = _Draft(findings)
    for line in scan.lines_of(path, data):
        draft.add(line)
    config = Config(settings_of(draft.values), draft.values, tuple(draft.records), tuple(scan.files))
    contradictions(config, findings)
    order = {file: position for position, file in enumerate(scan.files)}
    if findings.found:
        return Rejected(tuple(sorted(findings.found, key=lambda found: (order[found.place.file], found.place.line))))
    return config


@dataclass
class _Draft:
    findings: Findings
    values: dict[str, Value] = field(default_factory=dict)
    seen: dict[str, Place] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    # The line that first named a node, partition or device, per node.
    owners: dict[Scope, dict[str, dict[str, Place]]] = field(default_factory=lambda: {scope: {} for scope in Scope})
    name_count: int = 0

    def add(self, line: Sequence[Setting]) -> None:
        scope = _OPENERS.get(line[0].key.casefold())
        if scope is not None:
            self._add_record(scope, line)
            return
        for setting in line:
            self._add_value(setting, _KEYS, self.values, self.seen)

    def _add_value(
        self, setting: Setting, keys: Mapping[str, Key], into: dict[str, Value], seen: dict[str, Place]
    ) -> None:
        key = keys.get(setting.key.casefold())
        if key is None:
            self._report_unknown(setting, keys)
            return
        if key.name in seen:
            self.findings.add(setting.place, key.name, f"is set twice; first at {seen[key.name]}")
            return
        seen[key.name] = setting.place
        try:
            into[key.name] = Value(key, key.kind.parse(setting.value), setting.place)
        except ValueError as error:
            self.findings.suspects.add(key.name)
            self.findings.add(setting.place, key.name, str(error))

    def _report_unknown(self, setting: Setting, keys: Mapping[str, Key]) -> None:
        folded = setting.key.casefold()
        scopes = [scope for scope in Scope if folded in _ALLOWED[scope]]
        if folded in _OPENERS:
            problem = "starts a record and must be first on its line"
        elif keys is not _KEYS and folded in _KEYS:
            places = "".join(f", or in a {scope} record" for scope in scopes)
            problem = f"cannot be set in this record; give it a line of its own{places}"
        elif scopes:
            problem = f"is valid only in a {' or '.join(scopes)} record"
        else:
            names = [key.name for key in keys.values()] + list(Scope)
            nearest = nearest_of(setting.key, names)
            self.findings.suspects.add(nearest or "")
            self.findings.add(setting.place, setting.key, "unknown key", nearest)
            return
        self.findings.add(setting.place, setting.key, problem)

    def _add_record(self, scope: Scope, line: Sequence[Setting]) -> None:
        opener = line[0]
        found: dict[str, Value] = {}
        seen: dict[str, Place] = {}
        suspects_before = set(self.findings.suspects)
        for setting in line[1:]:
            self._add_value(setting, _ALLOWED[scope], found, seen)
        names = self._expand(opener, scope)
        nodes_setting = next((setting for setting in line if setting.key.casefold() == "nodes"), None)
        nodes: frozenset[str] | None = frozenset(names) if scope is Scope.NODE else None
        if scope is not Scope.NODE and nodes_setting is not None and nodes_setting.value != ALL_NODES:
            nodes = frozenset(self._expand(nodes_setting, Scope.NODE))
        if scope is Scope.PARTITION and nodes_setting is None:
            nodes = frozenset()
        missing = [key.name for key in _FIELD_KEYS[scope].values() if key.is_required and key.name not in found]
        for name in missing:
            # A wrong value or a misspelt key has a finding already.
            if name not in seen and name not in self.findings.suspects - suspects_before:
                self.findings.add(opener.place, name, f"is missing in the record of {shown(opener.value)}")
        record = Record(
            scope=scope,
            title=f"{scope}={opener.value}",
            place=opener.place,
            names=names,
            nodes=nodes,
            fields={name: value for name, value in found.items() if name.casefold() in _FIELD_KEYS[scope]},
            values={name: value for name, value in found.items() if name.casefold() not in _FIELD_KEYS[scope]},
        )
        self._report_overlap(record)
        if not missing:
            self.records.append(record)

    def _expand(self, setting: Setting, scope: Scope) -> tuple[str, ...]:
        try:
            if not setting.value:
                raise ValueError("has no value; expected a name")
            names: tuple[str, ...] = (setting.value,)
            # Beyond the limit, further lists are not expanded.
            if scope is not Scope.PARTITION and self.name_count <= NAME_COUNT_MAX:
                names = hostlist.expand(setting.value)
            self.name_count += len(names)
            if self.name_count > NAME_COUNT_MAX:
                raise ValueError(f"more than {NAME_COUNT_MAX} names in all records")
            if "DEFAULT" in names:
                raise ValueError("DEFAULT is not supported; give the keys lines of their own")
        except ValueError as error:
            self.findings.add(setting.place, setting.key, f"{shown(setting.value)!r}: {error}")
            return ()
        return names

    def _report_overlap(self, record: Record) -> None:
        """A node or partition may have one record, a device name one record per node."""
        nodes = [ALL_NODES]
        if record.scope is Scope.DEVICE and record.nodes is not None:
            nodes = sorted(record.nodes)
        if len(record.names) * len(nodes) > NAME_COUNT_MAX:
            self.findings.add(record.place, record.scope, f"names more than {NAME_COUNT_MAX} devices")
            return
        taken: dict[str, Place] = {}
        for name in record.names:
            if ALL_NODES in nodes and name in self.owners[record.scope]:
                taken[name] = next(iter(self.owners[record.scope][name].values()))
            by_node = self.owners[record.scope].setdefault(name, {})
            for node in nodes:
                earlier = by_node.get(node) or by_node.get(ALL_NODES)
                if earlier is not None:
                    taken[name] = earlier
                by_node.setdefault(node, record.place)
        if taken:
            label, first = shown(hostlist.compress(taken)), next(iter(taken.values()))
            self.findings.add(
                record.place, record.scope, f"{label} already has a record, at {first}; write one record for each"
            )
