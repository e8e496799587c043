"""Holds the kernels of best-effort sessions back while a high-class session of the same GPU is at work.

Iterations are ordered by the engine; between boundaries a best-effort session that is under way would still fill the
GPU's queue. Its gate page therefore says how many kernels it may have under way wherever the high class has a session,
and that it shall start none while one of those holds a grant. It is advice: libsalus bounds the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nodedaemon.config import Settings
from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId, JobClass
from nodedaemon.drivers.device import Device
from nodedaemon.service.journal.state import SessionFacts, ShellState
from nodedaemon.service.sessions.roster import Roster

_MOVES = (events.GrantReturned, events.SessionArrived, events.SessionLeft, events.SessionReleased)


class LaunchKeeper:
    def __init__(
        self,
        state: ShellState,
        roster: Roster,
        devices: Mapping[DeviceId, Device],
        settings: Callable[[DeviceId], Settings],
    ) -> None:
        self._state = state
        self._roster = roster
        self._settings = settings
        self._devices = {uuid for uuid, device in devices.items() if device.kind == "cuda"}

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:  # noqa: ARG002 - a watcher's shape
        """After each event: where grants or sessions changed, say anew who is held back."""
        if not self._devices:
            return
        if isinstance(event, _MOVES) or any(isinstance(command, commands.Grant) for command in made):
            for device in self._devices:
                self._update(device)

    def _update(self, device: DeviceId) -> None:
        sessions = [
            facts for facts in self._state.sessions.values() if facts.device == device and not facts.view.is_leaving
        ]
        high = [facts for facts in sessions if self._job_class(facts) is JobClass.HIGH]
        is_held = any(facts.view.epoch is not None for facts in high)
        limit = self._settings(device).daemon.best_effort_launches_max if high else 0
        for facts in sessions:
            live = self._roster.get(facts.session)
            if self._job_class(facts) is JobClass.BEST_EFFORT and live is not None and live.page is not None:
                live.page.hold_launches(limit, is_held=is_held)

    def _job_class(self, facts: SessionFacts) -> JobClass:
        job = self._state.jobs.get(facts.job)
        return job.job_class if job is not None else JobClass.NORMAL
