"""Every form of a job id is parsed, and a printed id parses back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.reports.selection import JobSelector
from cli.acct.job_ids import parse_jobs
from nodedaemon.core.errors import RequestError


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("123", [JobSelector(job_id=123)]),
        ("123,124", [JobSelector(job_id=123), JobSelector(job_id=124)]),
        ("123_4", [JobSelector(job_id=123, array_task_id=4)]),
        ("56502501_[1%1]", [JobSelector(job_id=56502501, array_task_id=1)]),
        ("7_[1-5:2,9],8", [*(JobSelector(job_id=7, array_task_id=n) for n in (1, 3, 5, 9)), JobSelector(job_id=8)]),
        ("123+1", [JobSelector(job_id=123, het_offset=1)]),
        ("123.batch", [JobSelector(job_id=123)]),
        ("123_4.0", [JobSelector(job_id=123, array_task_id=4)]),
        ("sABCDEF0123456", [JobSelector(sluid="sABCDEF0123456")]),
    ],
)
def test_each_form_of_a_job_id_is_parsed(text: str, jobs: list[JobSelector]) -> None:
    assert parse_jobs(text) == jobs


@pytest.mark.parametrize("text", ["x", "1_", "1_[", "1_[]", "1_[5-1]", "1+", "-1", "1 2", "1_[1-999999999]"])
def test_an_invalid_job_id_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="invalid job id"):
        parse_jobs(text)


@given(st.integers(0, 2**31), st.none() | st.integers(0, 10**6), st.booleans())
def test_a_printed_id_parses_back(job_id: int, number: int | None, is_array: bool) -> None:
    text = str(job_id) if number is None else f"{job_id}{'_' if is_array else '+'}{number}"
    (job,) = parse_jobs(text)
    assert job.job_id == job_id
    assert (job.array_task_id if is_array else job.het_offset) == number


@given(st.text(max_size=40))
def test_any_text_is_a_list_of_jobs_or_a_request_error(text: str) -> None:
    try:
        assert all(isinstance(job, JobSelector) for job in parse_jobs(text))
    except RequestError:
        return
