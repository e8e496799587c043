"""Jobs as the simulator sees them: when they are submitted, their memory, and how long they run alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nodedaemon.core.types import JobClass, JobId, Profile


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Its iterations follow each other without a pause or, with `request_offsets_ns`, answer requests.

    The offsets count from the moment at which the job can first run; each request is one iteration. A job of several
    devices uses them exclusively, because a Salus session has one device.
    """

    id: JobId
    submit_ns: int
    persistent_bytes: int
    ephemeral_bytes: int
    iteration_ns: int
    iteration_count: int
    model: str = ""
    user: str = "user"
    account: str = "account"
    job_class: JobClass = JobClass.NORMAL
    weight: int = 1
    device_count: int = 1
    request_offsets_ns: tuple[int, ...] | None = None
    #: Time from placement to the first iteration: interpreter, imports, data. The job holds its shards but no lane.
    startup_ns: int = 0

    @property
    def work_ns(self) -> int:
        """Device time that the job needs if it runs alone."""
        return self.iteration_ns * self.iteration_count

    @property
    def solo_ns(self) -> int:
        """How long the job lasts alone on a device: startup, work, and for a server also the time between requests."""
        if self.request_offsets_ns is None:
            return self.startup_ns + self.work_ns
        done_ns = self.startup_ns
        for offset_ns in self.request_offsets_ns:
            done_ns = max(done_ns, self.startup_ns + offset_ns) + self.iteration_ns
        return done_ns

    @property
    def profile(self) -> Profile:
        return Profile(self.persistent_bytes, self.ephemeral_bytes, self.iteration_ns)

    def with_context(self, context_bytes: int) -> Job:
        """Add a CUDA context, which every process holds for its whole life."""
        return replace(self, persistent_bytes=self.persistent_bytes + context_bytes)

    def in_turns(self, turn_count: int) -> Job:
        """Merge iterations so that the job has at most `turn_count` boundaries; its work stays the same."""
        if self.request_offsets_ns is not None or self.iteration_count <= turn_count:
            return self
        return replace(self, iteration_ns=-(-self.work_ns // turn_count), iteration_count=turn_count)


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission, and the devices they were meant for."""

    name: str
    jobs: tuple[Job, ...]
    about: str = ""
    source: str = ""
    device_count: int = 1
    node_count: int = 1
    device_bytes: int = 0
    turns_per_job: int | None = None
    #: What a reader needs to judge the figures: the parameters as drawn, and the assumptions.
    parameters: dict[str, str | float] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()

    def with_jobs(self, jobs: Iterable[Job]) -> Workload:
        return replace(self, jobs=tuple(jobs))


def by_submission(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Order by submit time. Jobs that are submitted at the same moment keep their order."""
    return tuple(sorted(jobs, key=lambda job: job.submit_ns))
