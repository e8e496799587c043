"""salus-admitd: the service beside slurmctld that answers job_submit.lua and the commands on login nodes.

Two doors. The unix socket takes submits, from root and SlurmUser only. The TCP port takes questions with a munge
credential. Behind them run the refresh of the catalog, re-admission, and the writer of decisions. A fault of one
request ends that request; nothing waits for Slurm or the database longer than a submit may.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import pwd
import signal
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from accounting.storage.database import DatabaseUnreachableError
from nodedaemon.config import Config, Rejected, Settings, load, load_or_raise, locate
from nodedaemon.config.spec import keys_of
from nodedaemon.core.errors import OperatingError, PeerError, RequestError, SalusError
from nodedaemon.core.types import SECOND_NS
from nodedaemon.wire.rate import UserRate
from slurm_plugin.admitd.answers import SubmitAnswers
from slurm_plugin.admitd.catalog import catalog_of
from slurm_plugin.admitd.credentials import verify
from slurm_plugin.admitd.database import DatabaseRecords
from slurm_plugin.admitd.profile_cache import Storage
from slurm_plugin.admitd.queries import Queries, kind_of, viewer_of
from slurm_plugin.admitd.readmission import Readmission
from slurm_plugin.admitd.upkeep import Upkeep
from slurm_plugin.slurm import Slurm, SlurmNode
from slurm_plugin.slurm.choice import open_slurm

log = structlog.get_logger()

LINE_BYTES_MAX = 256 * 1024
CATALOG_INTERVAL_S = 60.0
CATALOG_RETRY_S = 0.25
ANSWER_TIMEOUT_S = 15.0
# Before its credential is read a peer has no uid to count by: so many unmunge at once, so many connections in all.
CHECKS_MAX = 8
CONNECTIONS_MAX = 512

Answer = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class AdmissionMetrics:
    """What Prometheus reads of salus-admitd."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = Counter(
            "salus_admission_decisions", "Answers at submit.", ["decision", "basis"], registry=self.registry
        )
        self.seconds = Histogram(
            "salus_admission_seconds", "Time to answer a submit.", registry=self.registry,
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5),
        )  # fmt: skip
        self.over_limit = Counter(
            "salus_admission_over_limit", "Requests beyond a user's limit.", ["door"], registry=self.registry
        )
        self.refused_peers = Counter("salus_admission_refused_peers", "Connections refused.", registry=self.registry)
        self.readmitted = Gauge("salus_admission_readmitted", "Waiting jobs recharged.", registry=self.registry)
        self.lookup_failures = Gauge("salus_admission_lookup_failures", "Profiles not read.", registry=self.registry)
        self.dropped = Gauge("salus_admission_decisions_dropped", "Decisions lost.", registry=self.registry)
        self.summaries = Gauge("salus_admission_summaries", "AdminComments written.", registry=self.registry)
        self.left_out = Gauge(
            "salus_admission_summaries_left_out", "Not written for others' words.", registry=self.registry
        )
        self.upkeep_failures = Gauge("salus_admission_upkeep_failures", "Rounds that failed.", registry=self.registry)

    def count(self, decision: str, basis: str) -> None:
        self.decisions.labels(decision, basis).inc()


def peer_uid(connection: socket.socket) -> int:
    _pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def uids_of(config: Config) -> frozenset[int]:
    """Who may submit: root, SlurmUser, and the service's own user."""
    uids = {0, os.geteuid()}
    with contextlib.suppress(KeyError):
        uids.add(pwd.getpwnam(config.settings.slurm.user).pw_uid)
    return frozenset(uids)


class AdmissionServer:
    def __init__(self, config: Config, slurm: Slurm, records: DatabaseRecords, config_file: Path | None = None) -> None:
        self.config = config
        self.config_file = config_file
        self.metrics = AdmissionMetrics()
        self.storage = Storage(records, config.settings.admission.profile_cache_ns / SECOND_NS)
        self.admission = SubmitAnswers(config, self.storage, decided=self.metrics.count)
        self.readmission = Readmission(self.admission, slurm)
        self.queries = Queries(self.admission, slurm, records)
        self.upkeep = Upkeep(config, records.open)
        self.rate = UserRate()
        self.submit_rate = UserRate()
        self._checks = asyncio.Semaphore(CHECKS_MAX)
        self._slurm = slurm
        self._nodes: list[SlurmNode] = []
        self._uids = uids_of(config)
        self._connections: set[asyncio.Task[None]] = set()

    async def serve_unix(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peer_uid(writer.get_extra_info("socket"))
        if uid not in self._uids:
            self.metrics.refused_peers.inc()
            log.warning("refused", uid=uid, reason="neither root nor SlurmUser")
            writer.close()
            return
        await self._serve(reader, writer, self._timed_answer)

    async def _timed_answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        uid = request.get("uid")
        per_s = self.config.settings.admission.user_submits_per_s
        if isinstance(uid, int) and uid not in self._uids and not self.submit_rate.allows(uid, per_s):
            self.metrics.over_limit.labels("submit").inc()
            return {"ok": False, "say": f"salus: submit: more than {per_s} a second; wait a second, or use an array"}
        answer = await self.admission.answer(request)
        self.metrics.seconds.observe(time.perf_counter() - started)
        return answer

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve(reader, writer, self._checked_answer)

    async def _checked_answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        settings = self.config.settings
        async with self._checks:
            uid = await verify(request, settings.admission.credential_ttl_ns / SECOND_NS)
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
                writer.write(json.dumps(await self._one(line, answer)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError) as error:
            log.debug("connection ended", reason=str(error))
        finally:
            self._connections.discard(task)
            writer.close()

    async def _one(self, line: bytes, answer: Answer) -> dict[str, Any]:
        try:
            request = json.loads(line.decode(errors="replace"))
            if not isinstance(request, dict):
                raise PeerError("request: not an object")
            return await answer(request)
        except RequestError as error:
            return {"ok": False, "why": str(error), "kind": kind_of(error)}
        except PeerError as error:
            return {"ok": False, "why": str(error), "kind": "not_permitted"}
        except (DatabaseUnreachableError, TimeoutError) as error:
            return {"ok": False, "why": str(error) or "no answer in time", "kind": "unreachable"}
        except SalusError as error:
            return {"ok": False, "why": str(error), "kind": "failed"}
        except Exception as error:  # the handler of a connection: one request may not end the service
            log.exception("request failed")
            return {"ok": False, "say": "salus: submit: internal error; ask your administrator", "why": repr(error)}

    async def refresh_forever(self) -> None:
        while True:
            try:
                release = await asyncio.to_thread(self._slurm.release)
                self._nodes = await asyncio.to_thread(self._slurm.nodes)
                default = await asyncio.to_thread(self._slurm.default_partition)
                self.admission.catalog = catalog_of(self.config, self._nodes, default)
                self.admission.release = release
            except OperatingError as error:
                log.debug("nodes not read", reason=str(error))
                await asyncio.sleep(CATALOG_RETRY_S)
                continue
            self._export()
            await asyncio.sleep(CATALOG_INTERVAL_S)

    def reload(self) -> None:
        """Take the file anew. It is read and tried whole before anything is swapped; on a finding the old one stays."""
        loaded = load(self.config_file)
        if isinstance(loaded, Rejected):
            raise RequestError(f"reload refused, the old configuration stays:\n{loaded}")
        settings, old = loaded.settings, self.config.settings
        catalog = catalog_of(loaded, self._nodes, self.admission.catalog.default_partition)
        slurm = self._slurm if settings.slurm == old.slurm else open_slurm(settings.slurm)
        uids = uids_of(loaded)
        waiting = sorted(restart_keys(old, settings))
        self.config = self.admission.config = loaded
        self.admission.catalog, self._uids = catalog, uids
        self._slurm = self.readmission.slurm = self.queries.slurm = slurm
        self.storage.fresh_s = settings.admission.profile_cache_ns / SECOND_NS
        # A changed reserve or headroom changes what waiting jobs should be charged.
        self.admission.is_recheck_wanted = True
        log.info("configuration reloaded", files=[str(file) for file in loaded.files])
        if waiting:
            log.warning("changed keys wait for a restart", keys=waiting)

    def reload_by_signal(self) -> None:
        try:
            self.reload()
        except SalusError as error:
            log.error("configuration not reloaded, the old one stays", reason=str(error))

    def _export(self) -> None:
        self.metrics.readmitted.set(self.readmission.corrected_count)
        self.metrics.lookup_failures.set(self.storage.counters.lookup_failures)
        self.metrics.dropped.set(self.storage.counters.decisions_dropped)
        self.metrics.summaries.set(self.upkeep.counters.summary_count)
        self.metrics.left_out.set(self.upkeep.counters.left_out_count)
        self.metrics.upkeep_failures.set(self.upkeep.counters.failure_count)

    async def run(self, stopped: asyncio.Event) -> None:
        """Serve until `stopped`."""
        settings = self.config.settings
        path = Path(settings.admission.socket)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        servers = [await asyncio.start_unix_server(self.serve_unix, str(path), limit=LINE_BYTES_MAX, backlog=1024)]
        # Everybody may connect and is told apart by SO_PEERCRED; slurmctld is not of our group.
        path.chmod(0o666)
        if settings.admission.port:
            host = settings.admission.host
            servers.append(
                await asyncio.start_server(self.serve_tcp, host, settings.admission.port, limit=LINE_BYTES_MAX)
            )
        tasks = [
            asyncio.create_task(self.refresh_forever()),
            asyncio.create_task(self.storage.write_forever()),
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
        await self.storage.flush()
        self.storage.close()
        path.unlink(missing_ok=True)


def restart_keys(old: Settings, new: Settings) -> set[str]:
    """Keys of admission and database that differ and are read at the start only."""
    return {
        spec.name
        for section in ("admission", "storage", "readings")
        for spec in keys_of(type(getattr(new, section)))
        if not spec.is_live
        and getattr(getattr(old, section), spec.attribute) != getattr(getattr(new, section), spec.attribute)
    }


async def serve(config: Config, config_file: Path | None = None) -> None:
    settings = config.settings
    service = AdmissionServer(config, open_slurm(settings.slurm), DatabaseRecords(config), config_file)
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
    """Say which key named a port that somebody else has."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OperatingError(
            f"port {port}: in use; see who has it with ss -ltnp, end that, or set {key} in salus.conf to another"
        ) from error


def main() -> None:
    """Console script `salus-admitd`."""
    parser = argparse.ArgumentParser(prog="salus-admitd", description="Answers Slurm's submits and users' questions.")
    parser.add_argument("-f", "--config-file", type=Path, help="configuration file; SALUS_CONF comes second")
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
