"""The daemon's log: one line an event of note, key=value or JSON, to standard error where systemd keeps it."""

from __future__ import annotations

import sys
from typing import Any

import structlog

#: These come first on a line, so that a reader finds whose line it is.
KEY_ORDER = ("timestamp", "level", "event", "job", "session", "device")


def configure(*, is_json: bool = False, level: str = "info", stream: Any = None) -> None:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if is_json
        else structlog.processors.LogfmtRenderer(key_order=KEY_ORDER, drop_missing=True)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream or sys.stderr),
        cache_logger_on_first_use=False,
    )


def get_logger() -> Any:
    return structlog.get_logger()
