"""A Python that the cluster's users may run: the one we run under, or a copy where its directory is closed to others.

An interpreter in root's home is common on test machines. Python finds its library from where it stands, so a copy of
the binary and the standard library works; installed packages are reached through a .pth file and stay where they are.
"""

from __future__ import annotations

import shutil
import stat
import sys
import sysconfig
from pathlib import Path

from slurm_plugin.cluster.plan import TREE, ClusterPlan

# Not needed to run a job, and half of the size.
LEFT_OUT = ("site-packages", "test", "idlelib", "tkinter", "ensurepip", "turtledemo", "lib2to3")


def is_open_to_all(path: Path) -> bool:
    """Whether any user may reach and run `path`."""
    resolved = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (resolved, *resolved.parents))


def is_ours_open_to_all() -> bool:
    """Whether any user may read our sources and packages where they are; homes are closed on Debian."""
    return all(is_open_to_all(path) for path in (TREE, Path(sysconfig.get_path("purelib"))))


def interpreter(plan: ClusterPlan) -> str:
    """Path of a Python with our packages for jobs of any user; makes the copy at the first call (about a second)."""
    program = Path(sys.executable)
    if is_open_to_all(program) and (plan.is_tree_shown or is_open_to_all(program.parent)):
        return str(plan.shown(program))
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = plan.path("python")
    program = target / "python"
    if program.exists():
        return str(program)
    (target / "bin").mkdir(parents=True)
    base = Path(sys.base_prefix)
    library = target / "lib" / name
    shutil.copytree(base / "lib" / name, library, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    for shared in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(shared, target / "lib" / shared.name)
    (library / "site-packages").mkdir()
    (library / "site-packages" / "salus.pth").write_text(f"{plan.shown(Path(sysconfig.get_path('purelib')))}\n")
    shutil.copy2(Path(sys.executable).resolve(), target / "bin" / name)
    # The binary remembers where its own library was; without the variable it would take the system's, if there is one.
    text = f'#!/bin/sh\nexport LD_LIBRARY_PATH="{target}/lib:$LD_LIBRARY_PATH"\nexec "{target}/bin/{name}" "$@"\n'
    program.touch(mode=0o755)
    # Last: its presence says that the copy is whole.
    program.write_text(text)
    return str(program)
