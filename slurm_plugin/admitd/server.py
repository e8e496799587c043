"""salus-admitd, the service beside slurmctld that answers job_submit.lua and the commands on login nodes.

It listens on two sockets. The unix socket accepts submissions from root and SlurmUser only. The TCP port accepts
requests with a munge credential. Background tasks refresh the catalog, correct waiting jobs and write decisions. A
fault ends only the request that caused it. A submission never waits for Slurm, and only briefly for the database.
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
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import start_http_server

from nodedaemon.config import Config, Rejected, Settings, load, load_or_raise, locate
from nodedaemon.config.spec import keys_of
from nodedaemon.core.errors import OperatingError, RequestError, SalusError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.envelope import REQUEST_BYTES_MAX, Failure, Request, read_request, write_answer
from nodedaemon.wire.rate import UserRate
from nodedaemon.wire.trust import peer_credentials
from slurm_plugin.admitd.answers import SubmitAnswers, refused
from slurm_plugin.admitd.catalog import catalog_of
from slurm_plugin.admitd.credentials import verify
from slurm_plugin.admitd.database import AdmissionDatabase
from slurm_plugin.admitd.decision_queue import DecisionQueue
from slurm_plugin.admitd.metrics import AdmissionMetrics
from slurm_plugin.admitd.profile_cache import ProfileCache
from slurm_plugin.admitd.queries import Queries, viewer_of
from slurm_plugin.admitd.readmission import Readmission
from slurm_plugin.admitd.upkeep import Upkeep
from slurm_plugin.slurm import SlurmNode
from slurm_plugin.slurm.choice import open_slurm
from slurm_plugin.slurm.cli import SlurmCommands
from slurm_plugin.slurm.sacct import accounting_commands

log = structlog.get_logger()

CATALOG_INTERVAL_S = 60.0
CATALOG_RETRY_S = 0.25
ANSWER_TIMEOUT_S = 15.0
# A client's uid is unknown until its credential is checked, so limits per user cannot apply before that. Instead, the
# number of concurrent unmunge processes and the number of connections are limited.
CHECKS_MAX = 8
CONNECTIONS_MAX = 512

Answer = Callable[[Request], Awaitable[dict[str, Any] | Failure]]


def uids_of(config: Config) -> frozenset[int]:
    """The uids that may use the unix socket: root's, SlurmUser's, and the service's own."""
    uids = {0, os.geteuid()}
    with contextlib.suppress(KeyError):
        uids.add(pwd.getpwnam(config.settings.slurm.user).pw_uid)
    return frozenset(uids)


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
        self.queries = Queries(self.answers, slurm, store)
        self.upkeep = Upkeep(config, store.open, accounting_commands(config.settings.slurm))
        counters, export = self.upkeep.counters, self.metrics.export
        export("readmitted", "Waiting jobs whose charge was corrected.", lambda: self.readmission.corrected_count)
        export("lookup_failures", "Profiles that could not be read.", lambda: self.profiles.lookup_failures)
        export("decisions_dropped", "Decisions lost.", lambda: self.decisions.dropped_count)
        export("summaries", "Summaries written to AdminComment.", lambda: counters.summary_count)
        export("summaries_left_out", "Summaries not written, to protect the comments of other tools.",
               lambda: counters.left_out_count)  # fmt: skip
        export("upkeep_failures", "Upkeep rounds that failed.", lambda: counters.failure_count)
        self.rate = UserRate()
        self.submit_rate = UserRate()
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._slurm = slurm
        self._nodes: list[SlurmNode] = []
        self._uids = uids_of(config)
        self._connections: set[asyncio.Task[None]] = set()

    async def serve_unix(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peer_credentials(writer.get_extra_info("socket")).uid
        if uid not in self._uids:
            self.metrics.refused_peers.inc()
            log.warning("connection refused", uid=uid, reason="neither root nor SlurmUser")
            writer.close()
            return
        await self._serve(reader, writer, self._answer_submit)

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, self._answer_query)

    async def _answer_submit(self, request: Request) -> dict[str, Any] | Failure:
        started = time.perf_counter()
        uid, per_s = request.fields.get("uid"), self.config.settings.admission.user_submits_per_s
        if isinstance(uid, int) and uid not in self._uids and not self.submit_rate.allows(uid, per_s):
            self.metrics.over_limit.labels("submit").inc()
            return refused(f"salus: submit: more than {per_s} per second; wait a second, or use an array")
        answer = await self.answers.answer(request)
        self.metrics.seconds.observe(time.perf_counter() - started)
        return answer

    async def _answer_query(self, request: Request) -> dict[str, Any]:
        settings = self.config.settings
        async with self._checks:
            signed = {"verb": request.verb, **request.fields}
            uid = await verify(signed, settings.admission.credential_ttl_ns / SECOND_NS)
        if not self.rate.allows(uid, settings.admission.user_requests_per_s):
            self.metrics.over_limit.labels("question").inc()
            raise RequestError("salus-admitd: too many requests; wait a second")
        viewer = viewer_of(uid, settings.cluster.operators, settings.cluster.admins)
        return await asyncio.wait_for(self.queries.answer(viewer, request), ANSWER_TIMEOUT_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            self.metrics.refused_peers.inc()
            writer.close()
            return
        self._connections.add(task)
        try:
            while line := await reader.readline():
                writer.write(write_answer(await self._answer(line, answer)))
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError) as error:
            log.debug("connection ended", reason=str(error))
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, line: bytes, answer: Answer) -> dict[str, Any] | Failure:
        try:
            return await answer(read_request(line))
        except SalusError as error:
            return Failure.of(error)
        except TimeoutError:
            return Failure(why="salus-admitd: no answer in time; try again", kind="unreachable")
        except Exception:  # the handler of a connection: one request must not end the service
            log.exception("request failed")
            return Failure(why="salus-admitd: internal error; ask your administrator")

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
        self.answers.catalog, self._uids = catalog, uids
        self._slurm = self.readmission.slurm = self.queries.slurm = slurm
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

    async def run(self, stopped: asyncio.Event) -> None:
        """Serve until `stopped`."""
        settings = self.config.settings
        path = Path(settings.admission.socket)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        servers = [await asyncio.start_unix_server(self.serve_unix, str(path), limit=REQUEST_BYTES_MAX, backlog=1024)]
        # Anyone may connect, because slurmctld is not in our group; SO_PEERCRED decides who is served.
        path.chmod(0o666)
        if settings.admission.port:
            host = settings.admission.host
            servers.append(
                await asyncio.start_server(self.serve_tcp, host, settings.admission.port, limit=REQUEST_BYTES_MAX)
            )
        tasks = [
            asyncio.create_task(self.refresh_forever()),
            asyncio.create_task(self.decisions.write_forever()),
            asyncio.create_task(
                self.readmission.run_forever(lambda: self.config.settings.admission.readmit_interval_ns / SECOND_NS)
            ),
        ]
        self.upkeep.start()
        log.info("ready", socket=str(path), port=settings.admission.port)
        await stopped.wait()
        self.upkeep.stop()
        for server in servers:
            server.close()
        for task in [*tasks, *self._connections]:
            task.cancel()
        await asyncio.gather(*tasks, *self._connections, return_exceptions=True)
        await self.decisions.flush()
        self.decisions.close()
        self.profiles.close()
        path.unlink(missing_ok=True)


def restart_keys(old: Settings, new: Settings) -> set[str]:
    """The changed keys that take effect only at a restart."""
    return {
        spec.name
        for section in ("admission", "storage", "readings")
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
    readings = settings.readings
    if readings.admission_metrics_port:
        with _port_named("AdmissionMetricsPort", readings.admission_metrics_port):
            start_http_server(readings.admission_metrics_port, readings.metrics_address, service.metrics.registry)
    with _port_named("AdmissionPort", settings.admission.port):
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
        asyncio.run(serve(load_or_raise(path), path))
    except RequestError as error:
        print(f"salus-admitd: {error}", file=sys.stderr)
        sys.exit(2)
    except (SalusError, OSError) as error:
        print(f"salus-admitd: start: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
