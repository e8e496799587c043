"""salus-admitd down, hung and restarted: sbatch answers in time, slurmctld is not blocked, and every job is charged."""

import contextlib
import os
import re
import statistics
import threading
import time

import pytest

from tests.support.lab import wait_for

#: How much longer than usual a submission may take.
DELAY_S_MAX = 0.6
SHARED = ("--gres=salus:1", "--wrap", "true")


def timed(lab, *argv, user=None):
    started = time.monotonic()
    done = lab.run(*argv, user=user)
    return done, time.monotonic() - started


def timed_sbatch(lab, *argv):
    return timed(lab, "sbatch", "-H", *argv, user="games")


class PluginLog:
    """The lines that job_submit.lua writes to slurmctld's log from now on."""

    def __init__(self, lab):
        self.path = lab.cluster.plan.path("log", "slurmctld.log")
        self.offset = self.path.stat().st_size

    def text(self):
        with self.path.open("rb") as log:
            log.seek(self.offset)
            return log.read().decode(errors="replace")

    def seconds(self):
        """How long each unanswered request delayed slurmctld, by its own clock."""
        return [float(found) for found in re.findall(r"salus-admitd: \S.* after (\d+\.\d+) s", self.text())]


class Pings:
    """Sends other requests to slurmctld in a thread, and records how long each took."""

    COMMANDS = (("scontrol", "ping"), ("squeue", "-h"), ("sinfo", "-h"))

    def __init__(self, lab):
        self.lab, self.spans, self.is_over = lab, [], threading.Event()
        self.usual_s = max(self.ask() for _ in range(3))
        self.thread = threading.Thread(target=self.run)

    def ask(self):
        spans = []
        for command in self.COMMANDS:
            done, seconds = timed(self.lab, *command)
            assert done.returncode == 0, done.stderr
            spans.append(seconds)
        return max(spans)

    def run(self):
        while not self.is_over.is_set():
            self.spans.append(self.ask())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over.set()
        self.thread.join()


@pytest.fixture
def stopped_admitd(lab):
    lab.cluster.stop("admitd")
    yield
    lab.cluster.start("admitd")


def test_a_service_that_is_down_is_reported_at_once_and_the_job_gets_a_device_of_its_own(lab, stopped_admitd):
    log = PluginLog(lab)
    done = timed_sbatch(lab, *SHARED)[0]
    assert (done.returncode, "gets a device of its own" in done.stderr) == (0, True), done.stderr
    assert lab.charge(done.stdout.split()[-1]) == lab.whole_device
    assert "unavailable" in lab.refusal("--gres=salus:2", "--wrap", "true")
    assert "unavailable" in lab.refusal("--gres=shard:1", "--wrap", "true")
    assert lab.run("sbatch", "-H", "--wrap", "true", user="games").returncode == 0
    assert len(log.seconds()) == 3, log.text()
    assert max(log.seconds()) < DELAY_S_MAX


@contextlib.contextmanager
def hung_admitd(lab):
    pid = lab.cluster.pid("admitd")
    lab.run("kill", "-STOP", pid)
    try:
        yield
    finally:
        lab.run("kill", "-CONT", pid)


def wait_until_asked_again(lab):
    wait_for(lambda: "salus:2" in lab.refusal("--gres=salus:2", "--wrap", "true"), "the service to be asked again", 20)


def test_a_hung_service_delays_a_submission_by_half_a_second_and_soon_not_at_all(lab):
    usual_s = min(timed_sbatch(lab, *SHARED)[1] for _ in range(3))
    log = PluginLog(lab)
    with hung_admitd(lab):
        spans = [timed_sbatch(lab, *SHARED)[1] for _ in range(3)]
        # After three time-outs the plugin does not ask for a while.
        assert timed_sbatch(lab, *SHARED)[0].returncode == 0
    assert len(log.seconds()) == 3, log.text()
    assert log.seconds()[0] > 0.4
    assert max(log.seconds()) < DELAY_S_MAX
    assert log.text().count("not asked, after repeated time-outs") == 1
    # The shortest of three, because other work on this machine also delays a submission.
    assert min(spans) - usual_s < DELAY_S_MAX, (spans, usual_s)
    wait_until_asked_again(lab)


def test_many_submissions_at_once_delay_slurmctld_hardly_longer_than_one(lab):
    """Three of eight jobs send a request, two of them with a short deadline; the others are decided without one."""
    argv = ["sbatch", "-H", *SHARED]
    log = PluginLog(lab)
    with hung_admitd(lab), contextlib.ExitStack() as ended:
        submits = [ended.enter_context(lab.background(*argv, user="games")) for _ in range(8)]
        outputs = [submit.communicate(timeout=60) for submit in submits]
    assert [submit.returncode for submit in submits] == [0] * 8, outputs
    assert all("gets a device of its own" in complaint for _, complaint in outputs), outputs
    assert len(log.seconds()) == 3, log.text()
    assert log.text().count("not asked, after repeated time-outs") == 5
    # This bounds their sum: three full time-outs would take 1.5 s, and eight without the pause 4 s.
    assert sum(log.seconds()) < 2 * DELAY_S_MAX - 0.2, log.text()
    for number, _ in outputs:
        assert lab.charge(number.split()[-1]) == lab.whole_device
    wait_until_asked_again(lab)


def test_slurmctld_answers_others_while_submissions_wait_for_a_hung_service(lab):
    wait_until_asked_again(lab)
    pings, log = Pings(lab), PluginLog(lab)
    with hung_admitd(lab), pings:
        for _ in range(2):
            timed_sbatch(lab, *SHARED)
    assert len(log.seconds()) == 2, log.text()
    assert max(log.seconds()) < DELAY_S_MAX
    # Any other request to slurmctld waits for at most one such submission.
    assert statistics.median(pings.spans) - pings.usual_s < DELAY_S_MAX, (pings.spans, pings.usual_s)


@pytest.fixture
def refusing(lab):
    """OnAdmissionLoss=refuse, as `salus config lua` writes it. slurmctld reads job_submit.lua again if it is newer."""
    etc = lab.cluster.plan.path("etc")
    usual = (etc / "salus_admission.lua").read_text()
    assert 'on_loss = "exclusive"' in usual

    def write(text):
        (etc / "salus_admission.lua").write_text(text)
        os.utime(etc / "job_submit.lua", (time.time() + 2, time.time() + 2))

    write(usual.replace('on_loss = "exclusive"', 'on_loss = "refuse"'))
    yield
    write(usual)


def test_on_admission_loss_refuse_refuses_salus_jobs_and_no_others(lab, refusing, stopped_admitd):
    assert "unavailable" in lab.refusal("-H", *SHARED)
    assert "try again later" in lab.refusal("--gres=salus:1", "true", command="srun")
    assert lab.run("sbatch", "-H", "--wrap", "true", user="games").returncode == 0
    lab.cluster.start("admitd")
    assert lab.charge(lab.sbatch("-H", "--gres=salus:1", "--salus-mem=100M", "--wrap", "true"))["shard"] == 7
