"""A stand-in for the MPS control program: daemonises, keeps a pid file, obeys commands, and misbehaves on request.

It does only what the documentation of MPS promises. If the test passes the emulator's control program, starting and
stopping this program also turns MPS of the emulated device on and off.
"""

from __future__ import annotations

from pathlib import Path

from nodedaemon.drivers.mps import CONTROL

PROGRAM = """#!/bin/sh
pid_file="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
orders="$CUDA_MPS_LOG_DIRECTORY/orders"
case "$1" in
-d)
    {at_start}
    echo "$CUDA_VISIBLE_DEVICES" > "$CUDA_MPS_LOG_DIRECTORY/devices"
    id -u > "$CUDA_MPS_LOG_DIRECTORY/uid"
    mkfifo "$CUDA_MPS_PIPE_DIRECTORY/wait" 2>/dev/null
    "$0" --serve </dev/null >/dev/null 2>&1 &
    echo $! > "$pid_file"
    {emulator} 1
    ;;
--serve)
    exec 3<>"$CUDA_MPS_PIPE_DIRECTORY/wait"
    read -r line <&3
    ;;
*)
    {at_order}
    while read -r order; do
        echo "$order" >> "$orders"
        if [ "$order" = quit ]; then
            kill "$(cat "$pid_file")"
            rm -f "$pid_file"
            {emulator} 0
        fi
    done
    ;;
esac
"""


def write(directory: Path, *, at_start: str = ":", at_order: str = ":", emulator: str = ": ") -> Path:
    """Put the program into `directory`, which goes first in PATH."""
    directory.mkdir(exist_ok=True)
    program = directory / CONTROL
    program.write_text(PROGRAM.format(at_start=at_start, at_order=at_order, emulator=emulator))
    program.chmod(0o755)
    return program
