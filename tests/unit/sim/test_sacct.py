"""The output of sacct, read as a workload."""

import pytest

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import MIB, SECOND_NS
from nodedaemon.sim.models import timed_models
from nodedaemon.sim.sacct import read_sacct

HEADER = "JobID|User|Account|Submit|Start|End|ElapsedRaw|State|AllocTRES|AdminComment\n"


def write(tmp_path, *rows, header=HEADER):
    path = tmp_path / "sacct.txt"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


def test_submit_length_user_and_devices_are_read(tmp_path):
    path = write(
        tmp_path,
        "12|ann|phys|2026-01-31T12:00:00|2026-01-31T12:00:10|2026-01-31T12:01:40|90|COMPLETED|cpu=1,gres/gpu:a100=2,gres/gpu=2|",
        "11_3|bob|chem|2026-01-31T11:59:00|2026-01-31T12:00:00|2026-01-31T12:01:00|60|FAILED|billing=1,gres/salus=1,gres/shard=97|",
    )
    first, second = read_sacct(path, seed=1).jobs
    assert (first.id, first.submit_ns, first.user, first.account, first.device_count) == ("11_3", 0, "bob", "chem", 1)
    assert (second.id, second.submit_ns, second.device_count) == ("12", 60 * SECOND_NS, 2)
    assert abs(second.work_ns - 90 * SECOND_NS) <= second.iteration_ns


@pytest.mark.parametrize("written", [str, str.lower], ids=["as admitted", "by sacctmgr"])
def test_memory_comes_from_the_salus_segment_of_admin_comment(tmp_path, written):
    comment = written(f"site note salus:1;adm=77;P={300 * MIB};E={2000 * MIB}")
    path = write(tmp_path, f"1|ann|phys|100|110|200|90|COMPLETED|gres/gpu=1|{comment}")
    workload = read_sacct(path, seed=1)
    assert (workload.jobs[0].persistent_bytes, workload.jobs[0].ephemeral_bytes) == (300 * MIB, 2000 * MIB)
    assert workload.parameters["jobs_with_drawn_memory"] == 0
    assert workload.caveats == ()


def test_other_memory_is_drawn_by_the_seed_with_a_caveat(tmp_path):
    path = write(tmp_path, *(f"{n}|ann|phys|{n}|0|0|90|COMPLETED|gres/gpu=1|" for n in range(1, 31)))
    one, same, other = (read_sacct(path, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert [job.model for job in one.jobs] != [job.model for job in other.jobs]
    assert {job.model for job in one.jobs} <= {model.name for model in timed_models()}
    assert "memory of 30 of 30 jobs is not in the file" in one.caveats[0]


def test_steps_jobs_without_a_device_and_jobs_that_never_ran_are_counted(tmp_path):
    path = write(
        tmp_path,
        "1|a|b|100|110|200|90|COMPLETED|gres/gpu=1|",
        "1.batch|a|b|100|110|200|90|COMPLETED|gres/gpu=1|",
        "2|a|b|100|110|200|90|COMPLETED|cpu=4|",
        "3|a|b|100|Unknown|Unknown|0|PENDING|gres/gpu=1|",
    )
    result = read_sacct(path, seed=1).parameters
    assert (result["steps_left_out"], result["jobs_without_gpu_left_out"], result["jobs_not_run_left_out"]) == (1, 1, 1)


def test_a_requeued_job_counts_once_per_run(tmp_path):
    row = "1|a|b|100|110|200|90|COMPLETED|gres/gpu=1|"
    assert [job.id for job in read_sacct(write(tmp_path, row, row), seed=1).jobs] == ["1", "1@3"]


@pytest.mark.parametrize(
    ("elapsed", "seconds"), [("01:02", 62), ("03:01:02", 10862), ("2-00:00:01", 172801), ("00:05.250", 5)]
)
def test_elapsed_is_read_in_every_format_of_slurm(tmp_path, elapsed, seconds):
    path = write(tmp_path, f"1|100|{elapsed}|gres/gpu=1", header="JobID|Submit|Elapsed|ReqTRES\n")
    (job,) = read_sacct(path, seed=1).jobs
    assert abs(job.work_ns - seconds * SECOND_NS) <= job.iteration_ns


def test_every_bad_row_is_listed(tmp_path):
    path = write(
        tmp_path,
        "1|a|b|100|110|200|90|COMPLETED|gres/gpu=1|",
        "2|a|b|yesterday|110|200|long|COMPLETED|gres/gpu=1|",
        "3|a|b|100|110|200|90|COMPLETED|gres/gpu=many|",
        "4|a|pipe|in|name|100|110|200|90|COMPLETED|gres/gpu=1|",
    )
    with pytest.raises(RequestError) as caught:
        read_sacct(path, seed=1)
    result = str(caught.value).splitlines()
    assert "3 bad rows" in result[0]
    assert result[1].startswith(f"{path}:3: Submit is 'yesterday'")
    assert "ElapsedRaw is 'long'" in result[1]
    assert result[2].startswith(f"{path}:4: TRES is 'gres/gpu=many'")
    assert result[3] == f"{path}:5: 12 fields where the header has 10"


def test_start_and_end_replace_a_missing_elapsed_time(tmp_path):
    header = "JobID|Submit|Start|End|ReqTRES\n"
    path = write(tmp_path, "1|100|110|200|gres/gpu=1", "2|100|Unknown|Unknown|gres/gpu=1", header=header)
    (job,) = read_sacct(path, seed=1).jobs
    assert abs(job.work_ns - 90 * SECOND_NS) <= job.iteration_ns
    with pytest.raises(RequestError, match="End 100 is before Start 200"):
        read_sacct(write(tmp_path, "1|100|200|100|gres/gpu=1", header=header), seed=1)


def test_all_missing_columns_are_listed(tmp_path):
    path = write(tmp_path, header="User|Start\n")
    with pytest.raises(RequestError) as caught:
        read_sacct(path, seed=1)
    for column in ("JobID", "Submit", "ElapsedRaw, Elapsed, or Start and End", "AllocTRES or ReqTRES"):
        assert f"no column {column}" in str(caught.value)


@pytest.mark.parametrize("rows", [(), ("1|a|b|100|110|200|90|COMPLETED|cpu=1|",)])
def test_a_file_without_gpu_jobs_is_refused(tmp_path, rows):
    with pytest.raises(RequestError):
        read_sacct(write(tmp_path, *rows), seed=1)
