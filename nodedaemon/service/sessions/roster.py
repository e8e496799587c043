"""The part of a session that lives only in this process: its pidfd, its pages, its connection.

`Roster` keeps it by session. Nothing is lost with these objects: after a restart they are made again from the journal
and from the descriptors that the session hands back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nodedaemon.core.types import DeviceId, Domain, SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.journal.state import SessionFacts
from nodedaemon.service.sessions.gate_memory import GatePage, TurnPage
from nodedaemon.wire.messages import Message, ProfileReport
from nodedaemon.wire.pages import SLOT_COUNT


class Sender(Protocol):
    """The daemon's end of a connection."""

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send or queue. Never blocks: a peer that does not read loses its connection."""


@dataclass(slots=True, eq=False)
class LiveSession:
    session: SessionId
    process: Process | None = None
    page: GatePage | None = None
    turn: TurnPage | None = None
    slot: int = 0
    connection: Sender | None = None
    is_welcomed: bool = False
    has_said_bye: bool = False
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    overrun_serial: int = 0
    #: The last report that is not recorded yet.
    profile: ProfileReport | None = None
    own_bytes_max: int = 0
    recorded_ns: int = 0
    lost_contact_ns: int = 0
    #: Called when the engine admits the session.
    on_admitted: Callable[[], None] | None = None
    _watched_pidfd: int | None = None

    def admit(self) -> None:
        self.admitted.set()
        if self.on_admitted is not None:
            self.on_admitted()

    def watch_death(self, on_death: Callable[[SessionId], None]) -> None:
        assert self.process is not None
        self._watched_pidfd = self.process.pidfd
        asyncio.get_running_loop().add_reader(self._watched_pidfd, on_death, self.session)

    def stop_watching(self) -> None:
        if self._watched_pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._watched_pidfd)
            self._watched_pidfd = None


@dataclass(slots=True)
class TurnGroup:
    """Sessions of one uid, domain and device. Those with the same turn page can start each other."""

    pages: dict[str, TurnPage] = field(default_factory=dict)
    used: dict[str, set[int]] = field(default_factory=dict)


class Roster:
    """Live sessions and their turn pages."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, LiveSession] = {}
        self._groups: dict[tuple[int, Domain, DeviceId], TurnGroup] = {}

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session: SessionId | None) -> LiveSession | None:
        return self._sessions.get(session) if session is not None else None

    def add(self, session: SessionId) -> LiveSession:
        return self._sessions.setdefault(session, LiveSession(session))

    def take_slot(self, live: LiveSession, facts: SessionFacts) -> None:
        """Give the session a free slot on a turn page of its group, or on a new page if all are full."""
        group = self._groups.setdefault((facts.uid, facts.view.domain, facts.device), TurnGroup())
        page = next((page for page in group.pages.values() if len(group.used[page.identity]) < SLOT_COUNT), None)
        if page is None:
            page = TurnPage.create()
            group.pages[page.identity], group.used[page.identity] = page, set()
        used = group.used[page.identity]
        live.turn, live.slot = page, next(slot for slot in range(SLOT_COUNT) if slot not in used)
        page.clear(live.slot)
        used.add(live.slot)

    def adopt_slot(self, live: LiveSession, facts: SessionFacts, page: TurnPage) -> None:
        """After a restart: use the page that a session handed back, unless a peer has handed it back before."""
        group = self._groups.setdefault((facts.uid, facts.view.domain, facts.device), TurnGroup())
        if page.identity not in group.pages:
            group.pages[page.identity], group.used[page.identity] = page, set()
        else:
            page.close()
        group.used[page.identity].add(facts.slot)
        live.turn, live.slot = group.pages[page.identity], facts.slot

    def drop(self, session: SessionId) -> None:
        live = self._sessions.pop(session, None)
        if live is None:
            return
        live.stop_watching()
        if live.process is not None:
            live.process.close()
        if live.page is not None:
            live.page.close()
        if live.turn is not None:
            self._free_slot(live.turn, live.slot)

    def close(self) -> None:
        for session in list(self._sessions):
            self.drop(session)
        for group in self._groups.values():
            for page in group.pages.values():
                page.close()
        self._groups.clear()

    def _free_slot(self, turn: TurnPage, slot: int) -> None:
        for key, group in list(self._groups.items()):
            if turn.identity not in group.pages:
                continue
            group.used[turn.identity].discard(slot)
            if not group.used[turn.identity]:
                group.pages.pop(turn.identity).close()
                del group.used[turn.identity]
            if not group.pages:
                del self._groups[key]
