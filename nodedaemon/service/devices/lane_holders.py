"""Finds the processes that hold a lane's memory, and ends or reports those that have no session.

A session can pass its lane to any process: by fork, or with the descriptor. So a release has to check all processes of
the node. How long /proc takes to answer depends on those processes, so it is read in threads, and only one search of
the whole node runs at a time.

A process without a session that keeps a released lane after `UnmapTimeout` is ended if it belongs to a user who was
sent that lane. A process of another user may have received the descriptor without asking for it, and on a GPU we know
only suspects. Such processes are reported but not ended. In every case the bytes of the lane are counted until they are
free.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from nodedaemon.core.errors import PeerError, SalusError
from nodedaemon.core.types import SessionId
from nodedaemon.drivers.device import DeviceDriver, LaneMemory
from nodedaemon.drivers.process import Process, real_uid
from nodedaemon.service.usage.recorder import UsageRecorder
from nodedaemon.wire.logs import log
from nodedaemon.wire.users import user_name

_INIT_PID = 1


class UnattachedProcess(NamedTuple):
    """A process that holds lane memory and has no session."""

    pid: int
    uid: int


@dataclass(slots=True, eq=False)
class Held:
    """The memory of a lane, opened at one epoch, with every process and user that it was sent to."""

    device: DeviceDriver
    memory: LaneMemory
    epoch: int
    processes: dict[SessionId, Process] = field(default_factory=dict)
    uids: set[int] = field(default_factory=set)
    #: Processes without a session that hold it, as of the last search.
    unattached: tuple[UnattachedProcess, ...] = ()

    def forget_dead(self) -> None:
        for session, process in list(self.processes.items()):
            if process.is_gone():
                del self.processes[session]


class LaneHolders:
    def __init__(self, recorder: UsageRecorder) -> None:
        self._recorder = recorder
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="lane-holders")
        self._search = asyncio.Lock()
        self._reported: set[tuple[str, int]] = set()

    async def among(self, held: Held, pids: Collection[int]) -> set[int]:
        """The processes among `pids` that hold the memory now."""
        find = held.device.find_holders
        return await asyncio.get_running_loop().run_in_executor(self._threads, find, held.memory, pids)

    async def search(self, held: Held, sessions: Collection[int]) -> set[int]:
        """Find all processes that hold the memory. Those whose pid is not in `sessions` are unattached."""
        async with self._search:
            loop = asyncio.get_running_loop()
            pids = await loop.run_in_executor(self._threads, held.device.find_holders, held.memory, None)
            others = sorted(pids - set(sessions) - {os.getpid()})
            uids = await loop.run_in_executor(self._threads, lambda: [real_uid(pid) for pid in others])
        held.unattached = tuple(
            UnattachedProcess(pid, uid) for pid, uid in zip(others, uids, strict=True) if uid is not None
        )
        return pids

    async def report_and_end(self, held: Held) -> None:
        """Report the unattached processes, and end those that may be ended."""
        for process in held.unattached:
            may_end = held.device.capabilities.names_holders and process.uid in held.uids
            is_ended = may_end and process.pid != _INIT_PID
            self._report(held, process, is_ended=is_ended)
            if is_ended:
                await asyncio.get_running_loop().run_in_executor(self._threads, _end, held, process)

    def report_hidden(self, held: Held) -> None:
        """Report memory that is in use although no holder was found, such as a descriptor in an unread message."""
        self._report(held, UnattachedProcess(0, -1), is_ended=False)

    def forget(self, held: Held) -> None:
        held.unattached = ()
        self._reported = {(identity, pid) for identity, pid in self._reported if identity != held.memory.identity}

    def _report(self, held: Held, process: UnattachedProcess, *, is_ended: bool) -> None:
        if (held.memory.identity, process.pid) in self._reported:
            return
        self._reported.add((held.memory.identity, process.pid))
        who = f"pid {process.pid} of {user_name(process.uid)}" if process.pid else "an unknown process"
        detail = f"{who} keeps {held.memory.size_bytes} bytes of a released lane without a session"
        self._recorder.report_device("lane_kept", held.device.uuid, detail)
        log.warning(
            "process without a session keeps a released lane",
            device=held.device.uuid,
            pid=process.pid,
            uid=process.uid,
            bytes=held.memory.size_bytes,
            is_ended=is_ended,
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _end(held: Held, holder: UnattachedProcess) -> None:
    """End exactly the process that holds the memory: the pid may belong to another one by now."""
    try:
        process = Process.of_pid(holder.pid)
    except PeerError:
        return
    try:
        if held.device.find_holders(held.memory, [holder.pid]) and real_uid(holder.pid) == holder.uid:
            process.end()
    except SalusError as error:
        log.error("process not ended", pid=holder.pid, why=str(error))
    finally:
        process.close()
