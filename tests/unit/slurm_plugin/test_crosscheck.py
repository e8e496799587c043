"""salus.conf compared with slurm.conf and gres.conf: files that agree, and one fault at a time."""

from pathlib import Path

import pytest

from nodedaemon.config import Config
from nodedaemon.config.loading import parse
from slurm_plugin.slurm.crosscheck import cross_check, gres_lines
from slurm_plugin.slurm.slurmconf import read_slurm_files

SALUS = b"""ClusterName=lab
LaneReserve=256M
SingleHost=yes
AutoDetect=off
DeviceName=host0 Type=host Nodes=node[1-2] Memory=1G Cores=0
"""
SLURM = """ClusterName=lab
SlurmUser=slurm
SelectType=select/cons_tres
GresTypes=gpu,shard,salus
JobSubmitPlugins=lua
Prolog=/etc/salus/prolog
Epilog=/etc/salus/epilog
PrologFlags=Alloc
AccountingStorageTRES=gres/gpu,gres/salus,gres/shard
NodeName=node[1-2] Gres=gpu:1,shard:48,salus:48
PartitionName=main Nodes=node[1-2] Default=YES
"""
GRES = """NodeName=node[1-2] Name=gpu File=/dev/nvidia0
NodeName=node[1-2] Name=shard Count=48 File=/dev/nvidia0   # 768 MiB
NodeName=node[1-2] Name=salus Count=48
"""


def check(tmp_path, slurm=SLURM, gres=GRES, release=(24, 11), salus=b""):
    config = parse(Path("salus.conf"), salus + SALUS)
    assert isinstance(config, Config), config
    (tmp_path / "slurm.conf").write_text(slurm)
    (tmp_path / "gres.conf").write_text(gres)
    return [str(found) for found in cross_check(config, read_slurm_files(tmp_path / "slurm.conf"), release)]


def test_files_that_agree_have_no_mismatch(tmp_path):
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("required /usr/lib/salus/salus_spank.so socket=/s # on_loss=refuse", 0),
        ("required /usr/lib/salus/salus_spank.so on_loss=run", 0),
        ("optional other.so on_loss=refuse", 0),
        ("required /usr/lib/salus/salus_spank.so on_loss=refuse", 1),
        ("optional salus_spank.so on_loss=run on_loss=refuse", 1),
    ],
)
def test_the_plugins_line_in_plugstack_conf_must_agree_with_salus_conf(tmp_path, line, count):
    (tmp_path / "plugstack.conf").write_text(f"# on_loss=refuse\n{line}\n")
    found = check(tmp_path)
    assert len([text for text in found if "OnDaemonLoss=run" in text]) == len(found) == count


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("slurm", "GresTypes=gpu,shard,salus", "GresTypes=gpu", "lacks shard, salus"),
        ("slurm", "JobSubmitPlugins=lua\n", "", "no job is ever charged"),
        ("slurm", "cons_tres", "cons_res", "select/cons_tres"),
        ("slurm", "gres/salus,", "", "AccountingStorageTRES: lacks gres/salus"),
        ("slurm", "PrologFlags=Alloc\n", "", "lacks Alloc"),
        ("slurm", "Epilog=/etc/salus/epilog\n", "", "slurm.conf Epilog: is not set"),
        ("slurm", "ClusterName=lab", "ClusterName=other", "slurm.conf has other"),
        ("slurm", "SlurmUser=slurm", "SlurmUser=daemon", "refuses slurmctld"),
        ("slurm", "gpu:1,shard:48,salus:48", "gpu:1,salus:48", "salus without gpu and shard"),
        ("gres", "Count=48 File=/dev/nvidia0", "Count=64 File=/dev/nvidia0", "would overfill"),
        ("gres", "Count=48 File=/dev/nvidia0", "Count=40 File=/dev/nvidia0", "40 shards of 48"),
        ("gres", "Count=48 File=/dev/nvidia0", "Count=48", "no File="),
        ("gres", "Name=gpu File=/dev/nvidia0", "Name=gpu File=/dev/nvidia1", "different files"),
    ],
)
def test_each_fault_of_slurm_conf_and_gres_conf_is_found(tmp_path, file, old, new, words):
    found = check(tmp_path, **{file: {"slurm": SLURM, "gres": GRES}[file].replace(old, new)})
    assert any(words in text for text in found), found


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("HighQOS=gold", "qos"), ("HighAccounts=physics", "associations"), ("LaneSharing=account", "associations"),
        ("NodeName=node2 LaneSharing=account", "associations"), ("HighPartitions=main", None),
        ("LaneSharing=all", None),
    ],
)  # fmt: skip
def test_what_relies_on_accounts_or_qos_needs_slurm_to_check_them(tmp_path, line, needed):
    def found(enforced):
        return check(tmp_path, f"{SLURM}AccountingStorageEnforce={enforced}\n", salus=f"{line}\n".encode())

    lacking = f"error: slurm.conf AccountingStorageEnforce: lacks {needed}"
    for enforced in ("none", "nosteps", *(["associations"] if needed == "qos" else [])):
        assert [text.startswith(lacking) for text in found(enforced)] == [True] * bool(needed)
    assert found("associations,limits,qos") == found("all") == found("QOS") == []


def test_a_release_that_puts_whole_gpu_jobs_on_shared_devices_is_reported(tmp_path):
    assert any("may place a gres/gpu job" in text for text in check(tmp_path, release=(22, 5)))


def test_the_lines_that_config_gres_prints_pass_the_check(tmp_path):
    config = parse(Path("salus.conf"), SALUS)
    lines = [line for node in ("node1", "node2") for line in gres_lines(config, node, [("/dev/nvidia0", 2**30, 2**28)])]
    assert "NodeName=node1 Name=shard Count=48 File=/dev/nvidia0" in lines
    assert check(tmp_path, gres="\n".join(lines)) == []
