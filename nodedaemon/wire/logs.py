"""The daemon's log: one line per event, as key=value or JSON, to standard error, which systemd keeps, or to a file.

No user can fill the disk with it. Each user can cause at most `LINES_MAX` lines of one kind per minute; one line then
says how many were suppressed. A line counts for the user in its `uid` field, or else for the user of `on_behalf_of`.
Lines about root and about the daemon itself are never suppressed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

import structlog

from nodedaemon.wire.rate import KindBudget
from nodedaemon.wire.text import visible_fields

#: These come first on a line, so that a reader sees at once what the line is about.
KEY_ORDER = ("timestamp", "level", "event", "job", "session", "device")
LINES_MAX = 10
SUPPRESSED = "log lines suppressed"

log: Any = structlog.get_logger()
_peer_uid: ContextVar[int] = ContextVar("peer_uid", default=0)
_budget = KindBudget(LINES_MAX)


@contextlib.contextmanager
def on_behalf_of(uid: int) -> Iterator[None]:
    """Lines logged in this block count for this user, and so do those of tasks that are started in it."""
    token = _peer_uid.set(uid)
    try:
        yield
    finally:
        _peer_uid.reset(token)


def report_suppressed() -> None:
    """Log how many lines were suppressed in the last interval, if it is over."""
    for (kind, uid), count in _budget.end_interval().items():
        log.warning(SUPPRESSED, kind=kind, uid=uid, count=count)


def _limit_lines(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    uid = line.get("uid", _peer_uid.get())
    is_limited = uid not in (0, os.geteuid()) and line["event"] != SUPPRESSED
    if is_limited and not _budget.allows(line["event"], uid):
        raise structlog.DropEvent
    return line


def configure(*, is_json: bool = False, level: str = "info", stream: Any = None) -> None:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if is_json
        else structlog.processors.LogfmtRenderer(key_order=KEY_ORDER, drop_missing=True)
    )
    structlog.configure(
        processors=[
            _limit_lines,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([] if is_json else [visible_fields]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream or sys.stderr),
        cache_logger_on_first_use=False,
    )
