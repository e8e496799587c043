"""Class high on real Slurm: only if Slurm has checked the QOS or the account, and by the rules of all partitions."""

import contextlib

import pytest

from tests.support.lab import wait_for

HIGH = ("-H", "--gres=salus:1", "--salus-mem=100M", "--salus-class=high", "--wrap", "true")


@pytest.fixture(scope="module")
def accounts(cluster):
    """QOS gold and account physics, which user news may use and user games may not."""

    def change(*words):
        done = cluster.run(["sacctmgr", "-i", *words])
        assert done.returncode == 0, (words, done.stdout, done.stderr)

    change("add", "qos", "gold")
    change("add", "account", "physics,teaching")
    change("add", "user", "news", "account=teaching,physics", "defaultaccount=teaching", "qos=normal,gold")
    change("add", "user", "games", "account=teaching", "qos=normal")
    yield
    for kind, names in (("user", "games,news"), ("account", "physics,teaching"), ("qos", "gold")):
        change("delete", kind, names)


@contextlib.contextmanager
def enforcing(lab, value):
    """Restart slurmctld with AccountingStorageEnforce, and salus-admitd, so that it asks at once."""

    def restart(text):
        path.write_text(text)
        for name in ("slurmctld", "admitd"):
            lab.cluster.stop(name)
            lab.cluster.start(name)
        wait_for(lambda: lab.run("scontrol", "ping").returncode == 0, "slurmctld")

    path = lab.cluster.plan.slurm_conf
    before = path.read_text()
    restart(f"AccountingStorageEnforce={value}\n{before}")
    try:
        yield
    finally:
        restart(before)


def wait_known(lab, text):
    wait_for(lambda: text in lab.ask("scontrol", "show", "assoc_mgr"), f"slurmctld to know {text}")


def test_without_enforcement_nobody_gets_class_high_by_naming_a_qos_or_an_account(lab, accounts):
    wait_known(lab, "gold")
    for user in ("games", "news"):
        for choice in ("--qos=gold", "--account=physics"):
            assert "AccountingStorageEnforce lacks" in lab.refusal(choice, *HIGH, user=user)
        assert "neither the QOS" in lab.refusal(*HIGH, user=user)
    # Other classes are not concerned.
    assert lab.sbatch("-H", "--qos=gold", "--gres=salus:1", "--salus-mem=100M", "--wrap", "true")


def test_with_enforcement_only_members_get_class_high(lab, accounts):
    with enforcing(lab, "associations,qos"):
        wait_known(lab, "gold")

        def try_gold():
            return lab.run("sbatch", "--parsable", "--qos=gold", *HIGH, user="news")

        # The service asks Slurm in the background.
        first = wait_for(lambda: done.stdout.strip() if (done := try_gold()).returncode == 0 else "", try_gold)
        by_account = lab.sbatch("--account=physics", *HIGH, user="news")
        assert [lab.segment(job).job_class for job in (first, by_account)] == ["high", "high"]
        for choice in ("--qos=gold", "--account=physics"):
            assert "Invalid" in lab.refusal(choice, *HIGH, user="games")
        assert "neither the QOS" in lab.refusal(*HIGH, user="games")
        own = lab.sbatch("-H", "--gres=salus:1", "--salus-mem=100M", "--wrap", "true")
        for change in ("qos=gold", "account=physics"):
            assert lab.run("scontrol", "update", f"jobid={own}", change, user="games").returncode != 0
        # A member cannot keep the class and leave what allowed it.
        assert lab.run("scontrol", "update", f"jobid={first}", "qos=normal", user="news").returncode != 0
        lab.cancel_all()


def test_the_rules_of_every_partition_apply_in_any_order(lab):
    """Only partition `main` limits the running tasks of an unknown array."""
    for partitions in ("main,requeue", "requeue,main"):
        job = lab.sbatch("-H", "-p", partitions, "--array=1-4", "--gres=salus:1", "--wrap", "true")
        assert lab.segment(job).throttle == 0, partitions
        lab.ask("scancel", job)
