"""The part of a session that lives only in this process: its pidfd, its pages, its connection.

`Roster` keeps it by session. Nothing is lost with these objects: a restart creates them again from the journal and from
the descriptors that the session hands back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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

    def has_unread(self) -> bool:
        """Whether the peer has not yet read everything that was sent."""


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


class Roster:
    """Live sessions and their turn pages."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, LiveSession] = {}
        #: Turn pages by uid, domain and device. Sessions with the same page can start each other.
        self._pages: dict[tuple[int, Domain, DeviceId], list[TurnPage]] = {}

    def get(self, session: SessionId | None) -> LiveSession | None:
        return self._sessions.get(session) if session is not None else None

    def add(self, session: SessionId) -> LiveSession:
        return self._sessions.setdefault(session, LiveSession(session))

    def allocate_slot(self, live: LiveSession, facts: SessionFacts) -> None:
        """Give the session a free slot on a turn page that it may share, or on a new page if all are full."""
        pages = self._pages_for(facts)
        page = next((page for page in pages if len(page.used_slots) < SLOT_COUNT), None)
        if page is None:
            page = TurnPage.create()
            pages.append(page)
        live.turn, live.slot = page, next(slot for slot in range(SLOT_COUNT) if slot not in page.used_slots)
        page.clear(live.slot)
        page.used_slots.add(live.slot)

    def adopt_slot(self, live: LiveSession, facts: SessionFacts, page: TurnPage) -> None:
        """After a restart: use the page that a session handed back, unless a peer has already handed it back."""
        pages = self._pages_for(facts)
        present = next((one for one in pages if one.identity == page.identity), None)
        if present is None:
            pages.append(page)
        else:
            page.close()
        live.turn, live.slot = present or page, facts.slot
        live.turn.used_slots.add(facts.slot)

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

    def _pages_for(self, facts: SessionFacts) -> list[TurnPage]:
        return self._pages.setdefault((facts.uid, facts.view.domain, facts.device), [])

    def _free_slot(self, turn: TurnPage, slot: int) -> None:
        turn.used_slots.discard(slot)
        if turn.used_slots:
            return
        turn.close()
        for key, pages in list(self._pages.items()):
            if turn in pages:
                pages.remove(turn)
            if not pages:
                del self._pages[key]
