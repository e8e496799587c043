"""Random frames, deaths and restarts never break an invariant, and nothing is left of sessions that are gone."""

import random

import pytest

from nodedaemon.core import session_events
from nodedaemon.core.state.sessions import SessionState
from tests.support.session_fuzzer import SessionFuzzer


def fuzz(tmp_path, capsys, seed, frame_count, time_s=float("inf")):
    with SessionFuzzer(tmp_path, seed) as fuzzer:
        fuzzer.run(frame_count, time_s)
        counts = f"seed {seed}: {fuzzer.frame_count} frames, {fuzzer.daemon.event_count} events, {dict(fuzzer.steps)}"
    with capsys.disabled():
        print(f"\n{counts}")


def test_random_frames_deaths_and_restarts_break_no_invariant(tmp_path, capsys):
    fuzz(tmp_path, capsys, seed=16, frame_count=3_000)


def test_the_fuzzer_finds_an_engine_that_accepts_a_request_of_a_holder(tmp_path, monkeypatch):
    def want(session, round_):
        session.step(SessionState.WAITING, round_.now_ns)
        session.virtual = round_.device.book.join(session.id, session.virtual)
        round_.device.enqueue(session, round_.now_ns)

    monkeypatch.setattr(session_events, "_want", want)
    with SessionFuzzer(tmp_path, seed=16) as fuzzer, pytest.raises(AssertionError) as found:
        fuzzer.run(3_000)
    assert "seed 16" in found.value.__notes__[0]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_random_frames_break_no_invariant(tmp_path, capsys):
    fuzz(tmp_path, capsys, seed=random.getrandbits(32), frame_count=1_000_000)


@pytest.mark.redteam
@pytest.mark.timeout(1800)
def test_random_frames_for_a_thousand_seconds_break_no_invariant(tmp_path, capsys):
    fuzz(tmp_path, capsys, seed=random.getrandbits(32), frame_count=1 << 62, time_s=1_000)
