"""Notices when a program has imported a framework, without importing it. For other programs, the cost is one finder.

The loader that Python finds for the framework is kept; only its `exec_module` is wrapped, once.
"""

import importlib
import importlib.abc
import importlib.util
import sys
from types import ModuleType
from typing import Any, Optional, Sequence

from salus_job.frameworks import ADAPTORS


class FrameworkFinder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self._is_searching = False

    def find_spec(self, name: str, _path: Optional[Sequence[str]] = None, _target: Any = None) -> Any:
        if name not in ADAPTORS or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:
            return None
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            _wrap(spec.loader, name)
        return spec


def _wrap(loader: Any, name: str) -> None:
    plain = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        loader.exec_module = plain
        plain(module)
        attach(name, module)

    loader.exec_module = exec_module


def attach(name: str, framework: ModuleType) -> None:
    """Never raises: if Salus fails, the job continues without it."""
    try:
        from salus_job import process

        watch = process.current_watch()
        if watch is not None:
            module, adaptor = ADAPTORS[name]
            watch.use_framework(getattr(importlib.import_module(module), adaptor)(framework))
    except Exception as error:
        from salus_job import faults

        text = "attach: %r" % (error,)
        faults.warn_without_salus(text)
        faults.report(text)


def install() -> None:
    if not any(isinstance(finder, FrameworkFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, FrameworkFinder())
