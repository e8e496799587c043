"""The jobs of the side-by-side benchmark in `salus simulate`, which runs as a process of its own."""

import pytest

from tests.support import mix
from tests.support.mix_simulation import Demand, simulate_jobs, simulated_average_s
from tests.support.slurm_mix import Ended

KINDS = {kind.name: {"persistent_mib": 160.0, "ephemeral_mib": 256.0} for kind in mix.KINDS}
JOBS = [
    mix.Planned("a", mix.KINDS[0], 0.0, 1.0, is_long=False, iterations=25),
    mix.Planned("b", mix.KINDS[-1], 0.0, 1.0, is_long=False, iterations=5),
]


@pytest.mark.parametrize("name", ["srtf", "shard"])
def test_salus_simulate_and_the_simulator_that_draws_other_seeds_agree(name):
    """The benchmark's table and its other seeds come from the same arithmetic."""
    ran = {job.name: Ended(job.name, 0.0, 0.0, "node1", {}, 0.0) for job in JOBS}
    by_kind = {kind.name: Demand(1.0, 100.0, 0.5, 0.25) for kind in mix.KINDS}
    report = simulate_jobs(name, KINDS, JOBS, ran, [by_kind[job.kind.name] for job in JOBS])
    assert report.average_completion_s == pytest.approx(simulated_average_s(name, KINDS, by_kind, JOBS), rel=1e-3)
