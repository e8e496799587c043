"""Settings that every test shares: property tests draw the same examples each time, soak runs draw many new ones."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

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
