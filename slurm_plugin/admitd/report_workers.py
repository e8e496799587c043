"""Processes that answer questions about accounting, so that no report delays a submission or uses up our memory.

Each worker is a process (report_program.py) that answers one question at a time. A question that takes too long is
cancelled by its caller, which ends the process. The next question starts a new one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import msgspec

from accounting.viewer import Viewer
from nodedaemon.config.keys import Storage
from nodedaemon.core.errors import OperatingError
from nodedaemon.wire.envelope import ANSWER_BYTES_MAX, UnreachableError
from nodedaemon.wire.logs import log
from nodedaemon.wire.trust import OWN_IMPORTS, own_module

WORKERS_MAX = 2
#: A worker is replaced after this many answers, because a large report leaves its process large.
ANSWERS_MAX = 50


class ReportWorkers:
    """Questions wait in order for a free worker."""

    def __init__(self, storage: Storage) -> None:
        self._workers = [ReportWorker(storage.url, storage.pass_file) for _ in range(WORKERS_MAX)]
        # The last one used comes first: the second process starts only when both are needed.
        self._idle: asyncio.Queue[ReportWorker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._idle.put_nowait(worker)

    async def answer(self, viewer: Viewer, question: dict[str, Any]) -> bytes:
        """The answer as a line for the client."""
        worker = await self._idle.get()
        try:
            return await worker.answer(msgspec.json.encode({"viewer": viewer, "question": question}) + b"\n")
        finally:
            self._idle.put_nowait(worker)

    async def close(self) -> None:
        for worker in self._workers:
            await worker.close()


class ReportWorker:
    """Its process starts with the first question."""

    def __init__(self, url: str, password_file: str) -> None:
        self._command = own_module("slurm_plugin.admitd.report_program", url, password_file)
        self._process: asyncio.subprocess.Process | None = None
        self._answer_count = 0

    async def answer(self, task: bytes) -> bytes:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        is_done = False
        try:
            process.stdin.write(task)
            await process.stdin.drain()
            fault = msgspec.json.decode(await process.stdout.readline(), type=str)
            answer = await process.stdout.readline()
            is_done = answer.endswith(b"\n")
        except (OSError, msgspec.DecodeError):
            pass
        finally:
            if not is_done:
                await self.close()
        if not is_done:
            raise UnreachableError("salus-admitd: the process that makes reports ended; try again")
        self._answer_count += 1
        if fault:
            log.error("report failed", exception=fault)
        return answer

    async def _running(self) -> asyncio.subprocess.Process:
        if self._answer_count >= ANSWERS_MAX:
            await self.close()
        if self._process is None or self._process.returncode is not None:
            self._answer_count = 0
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=ANSWER_BYTES_MAX,
                    env={**os.environ, **OWN_IMPORTS},
                )  # fmt: skip
            except OSError as error:
                raise OperatingError(f"salus-admitd: start a report: {error.strerror or error}; try again") from error
        return self._process

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
