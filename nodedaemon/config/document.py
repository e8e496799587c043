"""Generates etc/salus.conf and the key reference docs/man/salus.conf.md from the dataclasses of `keys` and `records`.

`make man` writes both files. A test compares them with the tree, so no key stays undocumented.
"""

import sys
import textwrap
from pathlib import Path

from nodedaemon.config.records import FIELDS, GROUPS
from nodedaemon.config.spec import Key, Scope, keys_of

COLUMNS = 100

_TEMPLATE_HEAD = """\
# salus.conf: the configuration of Salus, one file for the cluster, in the syntax of slurm.conf.
# Every key is listed with its default, commented out. Remove the # in front of a key to change it.
# `salus config check` checks the file. `salus config show --origin` prints the values in effect.
# [NodeName, ...] lists the records that may also set the key. (restart): a reload is not enough.
# Sizes: 4096, 16M, 10G (1K is 1024). Times: 500ms, 30 (seconds), 5:00, 12:00:00, 7-00:00:00.
# `Include FILE` reads another file.
"""

_TEMPLATE_TAIL = """\

# Records: one line each. A line that ends with a backslash continues on the next line.
#
# Values for some nodes:
#NodeName=gpu[01-04] Policy=srtf MaxLanes=2
#
# Values for the jobs of a partition, or with Nodes= for its nodes:
#PartitionName=debug Nodes=gpu[01-02] Policy=fifo UnknownJob=declared
#
# A device that cannot be detected (a slice of the node's memory and cores), or values for one GPU:
#DeviceName=host0 Nodes=gpu01 Type=host Memory=2G Cores=0
#DeviceName=big Nodes=gpu04 Type=cuda Uuid=GPU-00000000-0000-0000-0000-000000000000 LaneReserve=24G
"""

_MANUAL_HEAD = """\
# salus.conf(5)

## Name

salus.conf - configuration of Salus

## Description

One file configures the whole cluster. It is the same on every node and uses the syntax of
slurm.conf. Salus reads the file named on the command line, or else the file that the environment
variable `SALUS_CONF` names. If neither is set, it reads `/etc/salus/salus.conf`, or else
`etc/salus.conf` next to the installation. If there is no such file, the defaults below apply.

- A line holds one or more `Key=Value` pairs. Keys and the names of choices are not case-sensitive.
- `#` starts a comment. Write `\\#` for the character itself. Put text with spaces in double quotes.
- A line that ends with a backslash continues on the next line.
- `Include FILE` reads another file at that point. A relative name is relative to the including
  file. `%c` is replaced by the `ClusterName` set above. A file must not include itself.
- Sizes are in bytes, or end with K, M, G, T or P, each 1024 times the one before: `16M`.
- Times are in seconds, have the form `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM` or `D-HH:MM:SS`, or end
  with `s`, `ms` or `us`: `500ms`. Percentages end with a percent sign: `10%`.
- Node names may be lists with ranges: `gpu[01-16,20],login1`.
- In paths, `%c` is the cluster name and `%%` is a percent sign. `%n` is the node name, if the value
  may differ between nodes.

A daemon does not start with an unknown key, a wrong unit, a key that is set twice or values that
contradict each other. On a reload, it keeps its old configuration instead. `salus config check`
reports all problems at once, each with its file and line.

## Keys

Each key may be set on a line of its own. Some keys may also be set in a record, for its nodes, its
partition or its device. The most specific value wins. The order is: device, node, partition, a line
of its own, default.
"""

_MANUAL_TAIL = """\

## Files

`/etc/salus/salus.conf`

## See also

salus(1), slurm.conf(5)
"""


def template_text() -> str:
    """etc/salus.conf: every key with its description and default."""
    parts = [_TEMPLATE_HEAD]
    for group in GROUPS.values():
        parts.append(f"\n## {_title(group)}\n")
        for key in keys_of(group):
            scopes = f" [{', '.join(key.scopes)}]" if key.scopes else ""
            restart = "" if key.is_live else " (restart)"
            parts.append(
                _wrap(f"{key.description}{scopes}{restart}", "# ", "# ") + f"#{key.name}={key.default_text()}\n"
            )
    return "".join([*parts, _TEMPLATE_TAIL])


def manual_text() -> str:
    """docs/man/salus.conf.md: the syntax, and every key with its type, default and records."""
    parts = [_MANUAL_HEAD]
    for group in GROUPS.values():
        parts.append(f"\n### {_title(group)}\n")
        parts += [_manual_entry(key) for key in keys_of(group)]
    parts.append("\n## Records\n")
    for scope, group in FIELDS.items():
        parts.append(f"\n### {scope}\n\n" + _wrap(f"{_title(group)}."))
        parts += [_manual_entry(key) for key in keys_of(group)]
        own = [key.name for other in GROUPS.values() for key in keys_of(other) if scope in key.scopes]
        parts.append("\n" + _wrap(f"Keys from above that may be set here: {', '.join(own)}."))
        if scope is Scope.PARTITION:
            parts.append(
                "\nA key that can also be set for nodes, such as Policy, needs `Nodes` and applies to those nodes.\n"
            )
    return "".join([*parts, _MANUAL_TAIL])


def _manual_entry(key: Key) -> str:
    notes = [key.kind.type_name]
    if key.is_required:
        notes.append("required")
    else:
        notes.append(f"default `{key.default_text()}`" if key.default_text() else "default empty")
    if key.scopes:
        notes.append(f"also in {', '.join(key.scopes)}")
    if not key.is_live:
        notes.append("needs a restart")
    return "\n" + _wrap(f"**{key.name}** ({'; '.join(notes)})") + _wrap(key.description, ": ", "  ")


def _wrap(text: str, first: str = "", others: str = "") -> str:
    lines = textwrap.wrap(
        text, COLUMNS, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines) + "\n"


def _title(group: type) -> str:
    return (group.__doc__ or group.__name__).strip().splitlines()[0]


def main(template: str, manual: str) -> None:
    """Write both files."""
    Path(template).write_text(template_text())
    Path(manual).write_text(manual_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
