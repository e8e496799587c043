"""Periodic work continues after an action that failed."""

import asyncio

import pytest
from structlog.testing import capture_logs

from nodedaemon.core.errors import OperatingError
from nodedaemon.service.periodic import repeat


def test_an_action_that_fails_is_logged_and_tried_again_and_the_others_are_done():
    calls = []

    async def fail():
        calls.append("fail")
        raise OperatingError("release lane: host0: no answer")

    def count():
        calls.append("count")
        if len(calls) == 4:
            raise AssertionError("a broken invariant ends the work")

    with capture_logs() as logged, pytest.raises(AssertionError, match="invariant"):
        asyncio.run(repeat(lambda: 0.0, fail, count))
    assert calls == ["fail", "count", "fail", "count"]
    assert [line["why"] for line in logged] == ["release lane: host0: no answer"] * 2
