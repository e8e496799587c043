"""Tables of jobs and of speeds are read, and every bad row is listed."""

import pytest

from nodedaemon.core.errors import RequestError
from nodedaemon.core.types import MIB, MILLISECOND_NS, SECOND_NS, JobClass
from nodedaemon.sim.tables import read_pair_speeds, read_workload


def write(tmp_path, text):
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    return path


def test_a_row_may_name_a_published_model(tmp_path):
    path = write(tmp_path, "job,submit_s,model,iterations\na,1.5,resnet50_50,10\n")
    (job,) = read_workload(path).jobs
    assert (job.id, job.submit_ns) == ("a", 1_500_000_000)
    assert job.persistent_bytes == 339 * MIB
    assert job.iteration_ns == round(225.7 * MILLISECOND_NS)
    assert job.iteration_count == 10


def test_a_row_may_give_all_values_without_a_model(tmp_path):
    path = write(
        tmp_path,
        "# our own jobs\n"
        "submit_s,persistent_mb,ephemeral_mb,iteration_ms,length_s,user,account,class,weight,gpus\n"
        "10,100,200,50,5,ann,physics,best-effort,3,2\n",
    )
    (job,) = read_workload(path).jobs
    assert job.id == "line3"
    assert (job.persistent_bytes, job.ephemeral_bytes) == (100 * MIB, 200 * MIB)
    assert job.work_ns == 5 * SECOND_NS
    assert (job.user, job.account, job.job_class, job.weight, job.device_count) == (
        "ann",
        "physics",
        JobClass.BEST_EFFORT,
        3,
        2,
    )


def test_jobs_are_ordered_by_submit_time(tmp_path):
    path = write(tmp_path, "job,submit_s,model,iterations\nb,2,vgg11_25,1\na,1,vgg11_25,1\n")
    assert [job.id for job in read_workload(path).jobs] == ["a", "b"]


def test_every_bad_row_is_listed_with_its_line_and_all_its_faults(tmp_path):
    path = write(
        tmp_path,
        "job,submit_s,model,persistent_mb,iterations,length_s,class\n"
        "a,0,resnet50_50,,10,,\n"
        "b,soon,resnet50_50,,ten,,urgent\n"
        "c,0,resnet51,,10,,\n"
        "d,0\n"
        "\n"
        "a,0,resnet50_50,,10,,\n"
        "e,-1,resnet50_50,nan,10,5,\n",
    )
    with pytest.raises(RequestError) as caught:
        read_workload(path)
    result = str(caught.value).splitlines()
    assert "5 bad rows, so nothing was run" in result[0]
    assert result[1] == (
        f"{path}:3: submit_s is 'soon', not a number; iterations is 'ten', not a number; "
        "class is 'urgent', not one of high, normal, best-effort"
    )
    assert result[2].startswith(f"{path}:4: model 'resnet51' is not in the published table")
    assert result[3] == f"{path}:5: 2 fields where the header has 7"
    assert result[4] == f"{path}:7: job a is already on line 2"
    assert "submit_s is -1, outside 0" in result[5]
    assert "persistent_mb is nan, outside" in result[5]
    assert "both iterations and length_s" in result[5]


def test_a_wrong_header_is_refused_in_one_message(tmp_path):
    path = write(tmp_path, "job,when,model,model\na,0,x,y\n")
    with pytest.raises(RequestError, match=r":1: unknown column 'when', no column 'submit_s', column 'model' twice"):
        read_workload(path)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "job,submit_s,model,iterations\n"])
def test_a_file_without_jobs_is_refused(tmp_path, text):
    with pytest.raises(RequestError):
        read_workload(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(RequestError, match="No such file"):
        read_workload(tmp_path / "none.csv")


def test_pair_speeds_are_read(tmp_path):
    path = write(tmp_path, "model,beside,speed\na,b,0.8\nb,a,0.7\n")
    assert read_pair_speeds(path) == {("a", "b"): 0.8, ("b", "a"): 0.7}


def test_all_bad_pair_speeds_are_listed(tmp_path):
    path = write(tmp_path, "model,beside,speed\na,b,0.8\na,b,0.7\na,,0.5\nc,d,1.5\n")
    with pytest.raises(RequestError) as caught:
        read_pair_speeds(path)
    result = str(caught.value)
    assert ":3: a beside b is already in the table" in result
    assert ":4: model and beside must both be named" in result
    assert ":5: speed is 1.5, outside 0.001 to 1" in result
