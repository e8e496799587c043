"""A stand-in for squeue that prints given rows with the delimiter that its caller chose."""

import shlex


def squeue_script(*rows: list[str]) -> str:
    """Lines of a shell script."""
    # The delimiter begins with the last x of --Format: the rest is hexadecimal.
    lines = ["for word; do case $word in --Format=*) delimiter=x${word##*x};; esac; done"]
    for row in rows:
        lines += [f"printf '%s%s' {shlex.quote(cell)} $delimiter" for cell in row]
        lines.append("echo")
    return "\n".join(lines)
