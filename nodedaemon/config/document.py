"""The shipped etc/salus.conf and the key reference docs/man/salus.conf.md, written from the dataclasses.

`make man` writes both; a test compares them with what is in the tree, so that no key goes undocumented.
"""

import sys
from pathlib import Path

from nodedaemon.config.records import FIELDS, GROUPS
from nodedaemon.config.spec import Key, Scope, keys_of

_TEMPLATE_HEAD = """\
# salus.conf: the configuration of Salus, one file for the whole cluster, in slurm.conf's syntax.
# Every key stands here with its default, commented out: remove the # in front to change one.
# Check the file with `salus config check`; `salus config show --origin` prints what is in effect.
# [NodeName, ...] names the records in which a key may stand as well; (restart) that a reload is not enough.
# Sizes: 4096, 16M, 10G (1K is 1024). Times: 500ms, 30 (seconds), 5:00, 12:00:00, 7-00:00:00. Include FILE works.
"""

_TEMPLATE_TAIL = """\

# Records, one line each; a backslash at the end of a line joins the next.
#
# Other values for some nodes:
#NodeName=gpu[01-04] Policy=srtf MaxLanes=2
#
# Other values for the jobs of a partition, or with Nodes= for its nodes:
#PartitionName=debug Nodes=gpu[01-02] Policy=fifo UnknownJob=declared
#
# A device that is not detected (a slice of the node's memory and cores), or other values for a GPU:
#DeviceName=host0 Nodes=gpu01 Type=host Memory=2G Cores=0
#DeviceName=big Nodes=gpu04 Type=cuda Uuid=GPU-00000000-0000-0000-0000-000000000000 LaneReserve=24G
"""

_MANUAL_HEAD = """\
# salus.conf(5)

## Name

salus.conf - configuration of Salus

## Description

One file for the whole cluster, the same on every node, in the syntax of slurm.conf. It is looked for in this order: the
file named on the command line, the one that the environment variable `SALUS_CONF` names, `/etc/salus/salus.conf`, and
`etc/salus.conf` beside the installation. Without any of them the defaults below hold.

- A line holds one or several `Key=Value`. Keys and names of choices may be written in any case.
- `#` starts a comment; write `\\#` for the character itself. Text with spaces stands in double quotes.
- A backslash at the end of a line joins the next one to it.
- `Include FILE` reads another file at that point; a relative name is relative to the including file, and `%c` stands
  for the `ClusterName` set above. A file that includes itself, directly or not, is an error.
- Sizes are bytes or carry K, M, G, T or P, each 1024 times the one before: `16M`. Times are seconds or `MM:SS`,
  `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, or carry `s`, `ms` or `us`: `500ms`. Percentages carry their sign: `10%`.
- Node names may be lists with ranges: `gpu[01-16,20],login1`.
- In paths `%c` stands for the cluster's name, `%n` for the node's where the value may differ by node, `%%` for `%`.

Unknown keys, wrong units, keys set twice and values that contradict each other stop the start of a daemon, or keep the
old configuration at a reload. `salus config check` reports all of them at once, each with its file and line.

## Keys

Each may stand on a line of its own; those marked so also in a record, where they hold for its nodes, partition or
device. The most special wins: device, node, partition, line of its own, default.
"""

_MANUAL_TAIL = """\

## Files

`/etc/salus/salus.conf`

## See also

salus(1), slurm.conf(5)
"""


def template_text() -> str:
    """etc/salus.conf: every key, its default, one line why."""
    parts = [_TEMPLATE_HEAD]
    for group in GROUPS.values():
        parts.append(f"\n## {_title(group)}\n")
        for key in keys_of(group):
            scopes = f" [{', '.join(key.scopes)}]" if key.scopes else ""
            restart = "" if key.is_live else " (restart)"
            parts.append(f"# {key.why}{scopes}{restart}\n#{key.name}={key.default_text()}\n")
    return "".join([*parts, _TEMPLATE_TAIL])


def manual_text() -> str:
    """docs/man/salus.conf.md: the syntax, and every key with kind, default and place."""
    parts = [_MANUAL_HEAD]
    for group in GROUPS.values():
        parts.append(f"\n### {_title(group)}\n")
        parts += [_manual_entry(key) for key in keys_of(group)]
    parts.append("\n## Records\n")
    for scope, group in FIELDS.items():
        parts.append(f"\n### {scope}\n\n{_title(group)}.\n")
        parts += [_manual_entry(key) for key in keys_of(group)]
        own = [key.name for other in GROUPS.values() for key in keys_of(other) if scope in key.scopes]
        parts.append(f"\nKeys from above that may stand here: {', '.join(own)}.\n")
        if scope is Scope.PARTITION:
            parts.append("\nA key that nodes have as well (Policy) needs `Nodes`, and holds for those nodes.\n")
    return "".join([*parts, _MANUAL_TAIL])


def _manual_entry(key: Key) -> str:
    notes = [key.kind.words]
    if key.is_required:
        notes.append("required")
    else:
        notes.append(f"default `{key.default_text()}`" if key.default_text() else "default empty")
    if key.scopes:
        notes.append(f"also in {', '.join(key.scopes)}")
    if not key.is_live:
        notes.append("needs a restart")
    return f"\n**{key.name}** ({'; '.join(notes)})\n: {key.why}\n"


def _title(group: type) -> str:
    return (group.__doc__ or group.__name__).strip().splitlines()[0]


def main(template: str, manual: str) -> None:
    """Write both files."""
    Path(template).write_text(template_text())
    Path(manual).write_text(manual_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
