"""The state with which salusd starts: replayed from the journal, or empty."""

from __future__ import annotations

from collections.abc import Collection

from nodedaemon.core.engine import Engine
from nodedaemon.core.errors import OperatingError, SalusError
from nodedaemon.core.types import DeviceId
from nodedaemon.service.journal.dispatcher import replay
from nodedaemon.service.journal.segments import Journal, set_aside
from nodedaemon.service.journal.state import ShellState
from nodedaemon.wire.logs import log


def recover_state(journal: Journal, version: str, devices: Collection[DeviceId]) -> ShellState:
    """Replay the journal. If that is not possible, start empty: a bad journal must not keep the daemon down."""
    segment = journal.recover()
    if journal.refusal:
        log.error("journal not used; running sessions are counted one by one as they reconnect", why=journal.refusal)
    if segment is None:
        return ShellState(Engine())
    try:
        result = replay(segment)
        if result.mismatch_count and segment.head.release != version:
            raise OperatingError(f"replay journal: release {segment.head.release} decided differently")
    except (SalusError, AssertionError, KeyError, ValueError) as error:
        log.error("journal not replayed; salusd starts without it", file=segment.path.name, why=str(error))
        set_aside(segment.path, "damaged")
        return ShellState(Engine())
    unknown = {device.device for device in result.engine.snapshot().devices} - set(devices)
    if unknown:
        log.error("journal not used: it has devices that are not configured", devices=sorted(unknown))
        return ShellState(Engine())
    log.info(
        "journal replayed",
        events=result.event_count,
        sessions=len(result.state.sessions),
        digests=result.digest_count,
        mismatches=result.mismatch_count,
        damaged_records=segment.damage.record_count,
    )
    return result.state
