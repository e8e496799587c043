"""Tells when torch has been imported, without importing it: a process that never does pays for one finder.

The loader that Python finds for torch is kept; only its `exec_module` is wrapped, once.
"""

import importlib.abc
import importlib.util
import sys
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

FRAMEWORK = "torch"


class FrameworkFinder(importlib.abc.MetaPathFinder):
    def __init__(self, attach: Callable[[ModuleType], None]) -> None:
        self._attach = attach
        self._is_searching = False

    def find_spec(self, name: str, _path: Optional[Sequence[str]] = None, _target: Any = None) -> Any:
        if name != FRAMEWORK or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:
            return None
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        plain = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = plain
            plain(module)
            self._attach(module)

        loader.exec_module = exec_module


def attach_torch(torch: ModuleType) -> None:
    """Never raises: a job goes on without Salus where ours fails."""
    try:
        from salus_job import hooks, process

        watch = process.current_watch()
        if watch is not None:
            watch.use_torch(torch)
            hooks.install(torch, watch)
    except Exception as error:
        from salus_job import complaint

        complaint.give_up("attach: %r" % (error,))


def install() -> None:
    if not any(isinstance(finder, FrameworkFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, FrameworkFinder(attach_torch))
