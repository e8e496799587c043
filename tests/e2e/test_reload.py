"""Running daemons reload salus.conf on SIGHUP and `salus reload`; an invalid file changes nothing."""

import os
import signal

import pytest

from tests.support.lab import wait_for

UNKNOWN = ("-H", "--gres=salus:1", "--wrap", "exec sleep 302")


@pytest.fixture
def conf(lab):
    """Adds lines to the cluster's salus.conf; afterwards all daemons reload the original."""
    path = lab.cluster.plan.salus_conf
    usual = path.read_text()

    def write(*lines):
        # Rename a complete file. General keys must come before the DeviceName records.
        path.with_suffix(".new").write_text("\n".join([*lines, usual]))
        path.with_suffix(".new").rename(path)

    yield write
    write()
    for part in ("salusd.node1", "salusd.node2", "admitd"):
        os.kill(lab.cluster.pid(part), signal.SIGHUP)
    wait_for(lambda: {"fair"} == policies(lab, "node1") == policies(lab, "node2"), "the usual configuration")


def policies(lab, node):
    return {row["policy"] for row in lab.node_status(node)["devices"]}


def reload(lab, node):
    return lab.run("salus", "reload", SLURMD_NODENAME=node)


def test_salusd_reloads_a_changed_file_on_a_signal_and_a_command_and_keeps_its_jobs(lab, conf):
    job = lab.sbatch("--gres=salus:1", "--salus-mem=150M,50M", "--nodelist=node1", "--wrap", "exec sleep 303")
    wait_for(lambda: lab.sessions(job), "salusd to know the job")
    conf("Policy=srtf")
    os.kill(lab.cluster.pid("salusd.node1"), signal.SIGHUP)
    wait_for(lambda: policies(lab, "node1") == {"srtf"}, "salusd to reload the file")
    # Each daemon reloads separately.
    assert policies(lab, "node2") == {"fair"}
    done = reload(lab, "node2")
    assert (done.returncode, policies(lab, "node2")) == (0, {"srtf"}), done.stderr
    assert [row["job"] for row in lab.sessions()] == [job]
    assert lab.state(job) == "RUNNING"


def test_salusd_refuses_an_invalid_file_and_keeps_the_old_configuration(lab, conf):
    conf("Polcy=srtf")
    done = reload(lab, "node1")
    assert (done.returncode, "salus.conf:1: Polcy: unknown key; did you mean Policy?" in done.stderr) == (2, True)
    os.kill(lab.cluster.pid("salusd.node2"), signal.SIGHUP)
    wait_for(lambda: "not reloaded" in lab.daemon_log("node2"), lambda: lab.daemon_log("node2"))
    assert policies(lab, "node1") == policies(lab, "node2") == {"fair"}


def test_salus_admitd_reloads_a_changed_file_on_a_signal_and_refuses_an_invalid_one(lab, conf):
    pid, log = lab.cluster.pid("admitd"), lab.cluster.plan.path("log", "admitd.out")
    assert lab.charge(lab.sbatch(*UNKNOWN)) == lab.whole_device
    conf("UnknownJob=refuse")
    os.kill(pid, signal.SIGHUP)
    wait_for(lambda: lab.run("sbatch", *UNKNOWN, user="games").returncode != 0, "an unknown job to be refused")
    before = log.stat().st_size
    conf("UnknownJob=perhaps")
    os.kill(pid, signal.SIGHUP)
    wait_for(lambda: b"not reloaded" in log.read_bytes()[before:], "the invalid file to be refused")
    assert lab.run("sbatch", *UNKNOWN, user="games").returncode != 0
    assert lab.cluster.pid("admitd") == pid
