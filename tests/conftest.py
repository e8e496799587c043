"""Fixtures and settings that tests share: property tests draw the same examples each time, soak runs draw new ones."""

from __future__ import annotations

import signal
import threading

import pytest
from hypothesis import HealthCheck, Phase, settings

# Fixtures that several directories use. All tests of a session share one cluster only if one file defines it.
from tests.support.cluster_fixtures import cluster, lab, open_directory  # noqa: F401
from tests.support.daemon_fixtures import crew, libsalus, one_lane, one_lane_daemons, rogue, salusd  # noqa: F401

# Under nohup, or in the background of a script, SIGINT is ignored. Every program that a test starts would inherit that,
# and Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    max_examples=150,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    database=None,
)
settings.load_profile("steady")


@pytest.fixture
def soak_settings() -> settings:
    """Many long random runs, for `make test-soak`."""
    return settings(settings.get_profile("steady"), derandomize=False, max_examples=3000, stateful_step_count=150)
