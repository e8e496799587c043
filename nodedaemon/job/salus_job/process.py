"""The one watch of this process. A framework calls its hooks without a context, so it is kept in one place."""

import os
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from salus_job.watch import Watch

_watch = None  # type: Optional[Watch]


def current_watch() -> "Optional[Watch]":
    """The watch of this process, created at its first use; None without Salus or if Salus is disabled."""
    global _watch
    if _watch is None and os.environ.get("SALUS_SOCKET") and os.environ.get("SALUS_DISABLE", "") in ("", "0"):
        from salus_job.watch import Watch

        _watch = Watch()
        os.register_at_fork(after_in_child=_watch.on_forked)
    return _watch
