"""Limits the kernel launches of best-effort sessions while a high-class session uses the same device.

The engine orders iterations, but a best-effort session in the middle of one could still fill the device's queue. So
while the high class has a session on the device, the gate page of each best-effort session limits its kernels in
flight. While a high-class session holds a grant, the page allows no new launch. This is advisory: libsalus bounds
the wait.
"""

from __future__ import annotations

from nodedaemon.core import commands, events
from nodedaemon.core.commands import Command
from nodedaemon.core.events import Event
from nodedaemon.core.types import DeviceId, JobClass
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.shell import Shell

_MOVES = (events.GrantReturned, events.SessionArrived, events.SessionLeft, events.SessionReleased)


class LaunchGate:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._state = shell.dispatcher.state
        self._devices = {uuid for uuid, device in shell.devices.items() if device.capabilities.gates_launches}

    def watch(self, event: Event, made: list[Command], now_ns: int) -> None:  # noqa: ARG002 - EventObserver
        """After each event that changed grants or sessions: update the gate pages."""
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
        limit = self._shell.configuration.for_device(device).daemon.best_effort_launches_max if high else 0
        for facts in sessions:
            live = self._shell.roster.get(facts.session)
            if self._job_class(facts) is JobClass.BEST_EFFORT and live is not None and live.page is not None:
                live.page.hold_launches(limit, is_held=is_held)

    def _job_class(self, facts: SessionFacts) -> JobClass:
        job = self._state.jobs.get(facts.job)
        return job.job_class if job is not None else JobClass.NORMAL
