"""`salus doctor` shows differences between salus.conf and Slurm's files with their own level and advice."""

from types import SimpleNamespace

from cli.node import doctor
from nodedaemon.service.checks.doctor import Level
from slurm_plugin.slurm.crosscheck import error, warning


def test_a_finding_about_slurm_states_its_level_once_and_gives_its_own_advice(tmp_path, monkeypatch):
    slurm_conf = tmp_path / "slurm.conf"
    slurm_conf.touch()
    found = [
        error("slurm.conf GresTypes", "lacks salus", "add it"),
        warning("gres.conf n1", "has few shards", "add some"),
    ]
    monkeypatch.setattr("cli.site.slurm_config.check_slurm", lambda _: found)
    config = SimpleNamespace(settings=SimpleNamespace(slurm=SimpleNamespace(conf=str(slurm_conf))))
    rows = [(one.level, one.seen, one.advice) for one in doctor._slurm_findings(config)]
    assert rows == [
        (Level.FAILURE, "slurm.conf GresTypes: lacks salus", "add it"),
        (Level.WARNING, "gres.conf n1: has few shards", "add some"),
    ]
