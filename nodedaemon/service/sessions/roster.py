"""What of a session lives only in this process: its pidfd, its pages, its connection.

`Roster` keeps them by session. Losing one of these objects loses no fact: after a restart they are made again from the
journal and from what the session hands back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nodedaemon.core.types import DeviceId, Domain, SessionId
from nodedaemon.drivers.process import Process
from nodedaemon.service.sessions.gate_memory import GatePage, TurnPage
from nodedaemon.wire.messages import Message, ProfileReport
from nodedaemon.wire.pages import SLOT_COUNT


class Sender(Protocol):
    """The daemon's end of a connection, as far as the executor needs it."""

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send or queue; a peer that does not read loses its connection, never the daemon's time."""


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
    overrun_what: int = 0
    #: The last one that is not recorded yet.
    profile: ProfileReport | None = None
    own_bytes_max: int = 0
    recorded_ns: int = 0
    lost_contact_ns: int = 0
    #: Called when the session is dropped: readers of its pidfd and the like.
    closers: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class TurnGroup:
    """Sessions of one uid, domain and device: they may start each other where they share a turn page."""

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

    def take_slot(self, live: LiveSession, uid: int, domain: Domain, device: DeviceId) -> None:
        """Give the session a slot of a turn page of its group; a 64th session gets a page of its own."""
        group = self._groups.setdefault((uid, domain, device), TurnGroup())
        page = next((page for page in group.pages.values() if len(group.used[page.identity]) < SLOT_COUNT), None)
        if page is None:
            page = TurnPage.create()
            group.pages[page.identity], group.used[page.identity] = page, set()
        used = group.used[page.identity]
        live.turn, live.slot = page, next(slot for slot in range(SLOT_COUNT) if slot not in used)
        page.clear(live.slot)
        used.add(live.slot)

    def adopt_slot(
        self, live: LiveSession, uid: int, domain: Domain, device: DeviceId, page: TurnPage, slot: int
    ) -> None:
        """After a restart: the page that a session handed back, or the one a mate handed back before."""
        group = self._groups.setdefault((uid, domain, device), TurnGroup())
        known = group.pages.get(page.identity)
        if known is None:
            group.pages[page.identity], group.used[page.identity] = page, set()
        else:
            page.close()
        group.used[page.identity].add(slot)
        live.turn, live.slot = group.pages[page.identity], slot

    def drop(self, session: SessionId) -> None:
        live = self._sessions.pop(session, None)
        if live is None:
            return
        for closer in live.closers:
            closer()
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
