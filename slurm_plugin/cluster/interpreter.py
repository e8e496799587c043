"""A Python that the cluster's users can run: ours, or a copy if other users cannot reach ours.

On test machines the interpreter is often in root's home. Python finds its library relative to its binary, so a copy of
the binary and the standard library works. Installed packages are not copied: a .pth file points to them.
"""

from __future__ import annotations

import shutil
import stat
import sys
import sysconfig
from pathlib import Path

from slurm_plugin.cluster.plan import TREE, ClusterPlan

# No job needs these, and they are half of the size.
LEFT_OUT = ("site-packages", "test", "idlelib", "tkinter", "ensurepip", "turtledemo", "lib2to3")


def is_open_to_all(path: Path) -> bool:
    """Whether any user can reach and run `path`."""
    resolved = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (resolved, *resolved.parents))


def is_ours_open_to_all() -> bool:
    """Whether any user can read our sources and packages in place. On Debian, users cannot enter others' homes."""
    return all(is_open_to_all(path) for path in (TREE, Path(sysconfig.get_path("purelib"))))


def interpreter(plan: ClusterPlan) -> str:
    """The path of a Python with our packages for any user's jobs. The first call may copy it, in about a second."""
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
    # The binary has the path of its own libpython; without this variable it might load the system's.
    text = f'#!/bin/sh\nexport LD_LIBRARY_PATH="{target}/lib:$LD_LIBRARY_PATH"\nexec "{target}/bin/{name}" "$@"\n'
    program.touch(mode=0o755)
    # Written last: if it exists, the copy is complete.
    program.write_text(text)
    return str(program)
