"""salus-admitd, the service beside slurmctld that answers job_submit.lua and the commands on login nodes.

It listens on two sockets. The unix socket accepts submissions from root and SlurmUser only (submit_socket.py). The TCP
port accepts requests with a munge credential (question_port.py). Background tasks refresh the catalog, correct waiting
jobs and write decisions; other processes make reports. A fault ends only the request that caused it. A submission never
waits for Slurm, and only briefly for the database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import pwd
import signal
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from accounting.viewer import Viewer
from nodedaemon.config import Config, Rejected, Settings, load, load_or_raise, locate
from nodedaemon.config.choices import LogFormat
from nodedaemon.config.spec import keys_of
from nodedaemon.core.errors import OperatingError, RequestError, SalusError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire import logs
from nodedaemon.wire.envelope import Failure, Request
from nodedaemon.wire.logs import log, report_suppressed
from nodedaemon.wire.metrics_page import MetricsPage
from nodedaemon.wire.rate import UserRate
from slurm_plugin.admitd.answers import SubmitAnswers, answer_or_failure, refused
from slurm_plugin.admitd.catalog import catalog_of
from slurm_plugin.admitd.credentials import verify
from slurm_plugin.admitd.database import AdmissionDatabase
from slurm_plugin.admitd.decision_queue import DecisionQueue
from slurm_plugin.admitd.metrics import AdmissionMetrics
from slurm_plugin.admitd.profile_cache import ProfileCache
from slurm_plugin.admitd.queries import Queries, viewer_of
from slurm_plugin.admitd.question_port import QuestionPort
from slurm_plugin.admitd.queue_listing import QueueListing
from slurm_plugin.admitd.readmission import Readmission
from slurm_plugin.admitd.report_workers import ReportWorkers
from slurm_plugin.admitd.submit_socket import SubmitSocket
from slurm_plugin.admitd.upkeep import Upkeep
from slurm_plugin.slurm import SlurmNode
from slurm_plugin.slurm.choice import open_slurm
from slurm_plugin.slurm.cli import SlurmCommands
from slurm_plugin.slurm.sacct import accounting_commands

CATALOG_INTERVAL_S = 60.0
CATALOG_RETRY_S = 0.25
LOG_INTERVAL_S = 5.0
#: Concurrent unmunge processes.
CHECKS_MAX = 4


def uids_of(config: Config) -> frozenset[int]:
    """The uids that may use the unix socket: root's, SlurmUser's, and the service's own."""
    owner_uid = slurm_uid(config)
    return frozenset({0, os.geteuid()} | ({owner_uid} if owner_uid is not None else set()))


def slurm_uid(config: Config) -> int | None:
    """The uid of SlurmUser, if this host has that account."""
    try:
        return pwd.getpwnam(config.settings.slurm.user).pw_uid
    except KeyError:
        return None


class AdmissionServer:
    def __init__(
        self, config: Config, slurm: SlurmCommands, store: AdmissionDatabase, config_file: Path | None = None
    ) -> None:
        self.config = config
        self.config_file = config_file
        self.metrics = AdmissionMetrics()
        self.profiles = ProfileCache(store, config.settings.admission.profile_cache_ns / SECOND_NS)
        self.decisions = DecisionQueue(store, self.metrics.count_decision)
        self.answers = SubmitAnswers(config, self.profiles, self.decisions, catalog_of(config))
        self.readmission = Readmission(self.answers, slurm)
        self.queue = QueueListing(slurm.jobs)
        self.reports = ReportWorkers(config.settings.storage)
        self.question_port = QuestionPort(self.verify, Queries(self.answers, self.queue, self.reports), self.metrics)
        self.submit_socket = SubmitSocket(self.answer_submit, uids_of(config), self.metrics)
        self.upkeep = Upkeep(config, store.open, accounting_commands(config.settings.slurm))
        counters, export = self.upkeep.counters, self.metrics.export
        export("readmitted", "Waiting jobs whose charge was corrected.", lambda: self.readmission.corrected_count)
        export("lookup_failures", "Profiles that could not be read.", lambda: self.profiles.lookup_failures)
        export("decisions_dropped", "Decisions lost.", lambda: self.decisions.dropped_count)
        export("summaries", "Summaries written to AdminComment.", lambda: counters.summary_count)
        export("summaries_left_out", "Summaries not written, to protect the comments of other tools.",
               lambda: counters.left_out_count)  # fmt: skip
        export("sacct_rows_skipped", "Rows of sacct that the last comparison could not read or store.",
               lambda: counters.skipped_count)  # fmt: skip
        export("upkeep_failures", "Upkeep rounds that failed.", lambda: counters.failure_count)
        self.rate = UserRate()
        self.submit_rate = UserRate()
        # Not on the event loop: on a busy host, starting a process takes many milliseconds.
        self._checkers = ThreadPoolExecutor(CHECKS_MAX, "credentials")
        self._slurm = slurm
        self._nodes: list[SlurmNode] = []

    async def answer_submit(self, request: Request) -> dict[str, Any] | Failure:
        """Answer a request of job_submit.lua. What it logs counts for the user who submits."""
        uid = request.fields.get("uid")
        uid = uid if isinstance(uid, int) else 0
        with logs.on_behalf_of(uid):
            return await answer_or_failure(self._answer_submit(request, uid))

    async def _answer_submit(self, request: Request, uid: int) -> dict[str, Any] | Failure:
        started = time.perf_counter()
        per_s = self.config.settings.admission.user_submits_per_s
        if uid not in self.submit_socket.uids and not self.submit_rate.allows(uid, per_s):
            self.metrics.over_limit.labels("submit").inc()
            return refused(f"salus: submit: more than {per_s} per second; wait a second, or use an array")
        answer = await self.answers.answer(request)
        self.metrics.seconds.observe(time.perf_counter() - started)
        return answer

    async def verify(self, credential: bytes, message: bytes) -> Viewer:
        """The user who made the request, unless that user makes too many."""
        settings = self.config.settings
        ttl_s = settings.admission.credential_ttl_ns / SECOND_NS
        uid = await asyncio.get_running_loop().run_in_executor(
            self._checkers, verify, credential, message, settings.slurm.user, ttl_s
        )
        if not self.rate.allows(uid, settings.admission.user_requests_per_s):
            self.metrics.over_limit.labels("question").inc()
            raise RequestError("salus-admitd: too many requests; wait a second")
        return viewer_of(uid, settings.cluster.operators, settings.cluster.admins)

    async def refresh_forever(self) -> None:
        while True:
            try:
                release = await asyncio.to_thread(self._slurm.release)
                enforced = await asyncio.to_thread(self._slurm.enforcement)
                self._nodes = await asyncio.to_thread(self._slurm.nodes)
                default = await asyncio.to_thread(self._slurm.default_partition)
                self.answers.catalog = catalog_of(self.config, self._nodes, default)
                self.answers.release, self.answers.enforced = release, enforced
            except OperatingError as error:
                log.debug("nodes not read", reason=str(error))
                await asyncio.sleep(CATALOG_RETRY_S)
                continue
            await asyncio.sleep(CATALOG_INTERVAL_S)

    def reload(self) -> None:
        """Read the configuration again. Nothing changes unless all of it is valid."""
        loaded = load(self.config_file)
        if isinstance(loaded, Rejected):
            raise RequestError(f"reload refused; the old configuration stays in effect:\n{loaded}")
        settings, old = loaded.settings, self.config.settings
        catalog = catalog_of(loaded, self._nodes, self.answers.catalog.default_partition)
        slurm = self._slurm if settings.slurm == old.slurm else open_slurm(settings.slurm)
        uids = uids_of(loaded)
        waiting = sorted(restart_keys(old, settings))
        self.config = self.answers.config = loaded
        self.answers.catalog, self.submit_socket.uids = catalog, uids
        self._slurm = self.readmission.slurm = slurm
        self.queue.read = slurm.jobs
        self.profiles.fresh_s = settings.admission.profile_cache_ns / SECOND_NS
        # A changed reserve or headroom changes the charges of waiting jobs.
        self.answers.is_recheck_wanted = True
        log.info("configuration reloaded", files=[str(file) for file in loaded.files])
        if waiting:
            log.warning("changed keys need a restart", keys=waiting)

    def reload_by_signal(self) -> None:
        try:
            self.reload()
        except SalusError as error:
            log.error("configuration not reloaded; the old one stays in effect", reason=str(error))

    def _background_work(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self.refresh_forever()
        yield self.decisions.write_forever()
        yield self.readmission.run_forever(lambda: self.config.settings.admission.readmit_interval_ns / SECOND_NS)
        yield report_suppressed_forever()

    async def run(self, stopped: asyncio.Event) -> None:
        """Serve until `stopped`."""
        settings = self.config.settings
        path = Path(settings.admission.socket)
        async with contextlib.AsyncExitStack() as parts:
            await self.submit_socket.listen(path, slurm_uid(self.config))
            parts.callback(path.unlink, missing_ok=True)
            parts.callback(self.profiles.close)
            parts.callback(self.decisions.close)
            parts.callback(self._checkers.shutdown, wait=False, cancel_futures=True)
            parts.push_async_callback(self.decisions.flush)
            parts.push_async_callback(self.reports.close)
            parts.push_async_callback(self.submit_socket.close)
            if settings.admission.port:
                with _port_named("AdmissionPort", settings.admission.port):
                    await self.question_port.listen(settings.admission.host, settings.admission.port)
                parts.push_async_callback(self.question_port.close)
            page = MetricsPage(self.metrics.registry)
            await page.open(settings.readings.metrics_address, settings.readings.admission_metrics_port)
            parts.callback(page.close)
            tasks = [asyncio.create_task(work) for work in self._background_work()]
            parts.push_async_callback(_end, tasks)
            self.upkeep.start()
            parts.callback(self.upkeep.stop)
            log.info("ready", socket=str(path), port=settings.admission.port)
            await stopped.wait()


async def report_suppressed_forever() -> None:
    while True:
        await asyncio.sleep(LOG_INTERVAL_S)
        report_suppressed()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def restart_keys(old: Settings, new: Settings) -> set[str]:
    """The changed keys that take effect only at a restart."""
    return {
        spec.name
        for section in ("admission", "storage", "readings", "slurm")
        for spec in keys_of(type(getattr(new, section)))
        if not spec.is_live
        and getattr(getattr(old, section), spec.attribute) != getattr(getattr(new, section), spec.attribute)
    }


async def serve(config: Config, config_file: Path | None = None) -> None:
    settings = config.settings
    service = AdmissionServer(config, open_slurm(settings.slurm), AdmissionDatabase(config), config_file)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, service.reload_by_signal)
    await service.run(stopped)


@contextlib.contextmanager
def _port_named(key: str, port: int) -> Iterator[None]:
    """Name the key of salus.conf if its port is in use."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OperatingError(
            f"port {port}: in use; find the process with ss -ltnp and end it, or change {key} in salus.conf"
        ) from error


def main() -> None:
    """Console script `salus-admitd`."""
    parser = argparse.ArgumentParser(prog="salus-admitd", description="Salus's admission service.")
    parser.add_argument("-f", "--config-file", type=Path, help="configuration file; overrides SALUS_CONF")
    arguments = parser.parse_args()
    try:
        path = locate(arguments.config_file)
        config = load_or_raise(path)
        readings = config.settings.readings
        logs.configure(is_json=readings.log_format is LogFormat.JSON, level=readings.log_level)
        asyncio.run(serve(config, path))
    except RequestError as error:
        print(f"salus-admitd: {error}", file=sys.stderr)
        sys.exit(2)
    except (SalusError, OSError) as error:
        print(f"salus-admitd: start: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
