"""Loads the adaptor into every Python process of a job, then the sitecustomize that this one shadows.

Python imports the first `sitecustomize` on its path at start-up, and salusd puts this directory on PYTHONPATH. Programs
that import no framework are not affected. No Salus code raises here. An exception in the shadowed module is passed on,
so that Python reports it as it would without Salus.
"""

import os
import sys


def _is_wanted() -> bool:
    disabled = os.environ.get("SALUS_DISABLE", "")
    return bool(os.environ.get("SALUS_SOCKET")) and disabled in ("", "0")


def _install() -> None:
    try:
        from salus_job import import_hook

        import_hook.install()
    except Exception as error:  # A fault of Salus must not fail the job, or write to its output unless asked.
        if os.environ.get("SALUS_VERBOSE", "") not in ("", "0"):
            sys.stderr.write("salus: start: %r; the job continues without Salus\n" % (error,))


def _chain() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if _is_wanted():
    _install()
_chain()
