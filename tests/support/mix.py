"""The jobs of the side-by-side benchmark: the busy cluster of the simulator's `paper` workload, on a small scale.

The lengths are those of nodedaemon/sim/data/paper.toml, divided by SCALE and cut at LONG_S. They are lognormal, with a
tail as heavy as in traces of GPU clusters. Nearly all of the work is in a few long jobs, so a device that is busy at a
random moment is most likely held by a long job. The list therefore begins with one job of LONG_S for each device, and
jobs of any length arrive while those would hold the devices. Lengths are quantiles, not random draws: a seed decides
only the order, the kinds and the gaps. The number of iterations follows from the time of one on this machine. The
devices are as full as the published models make them: they hold a few jobs by peak memory, and many by persistent
memory.

A job uses a core for more than two seconds before and after its iterations: imports, the first touch of its pages, its
end. Here that is the device's own core. LONG_S is chosen so that the other jobs, with all of this, need three fifths of
the cores. If they needed nearly all, jobs would queue for their imports, whatever the order of iterations.
SEED is the first seed that had been neither run nor simulated when it was committed. tests/bench/sidebyside.py also
simulates other seeds and a random order, which shows how much of the result comes from the long jobs being first.
"""

import math
import random
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import NormalDist

PAPER = tomllib.loads((files("nodedaemon.sim") / "data" / "paper.toml").read_text())
SCALE = 90  # three minutes, the mean, become two seconds
LONG_S = 75.0
ITERATIONS_MIN = 3
SEED = 23
DEVICE_COUNT = 2
DEVICE_MIB = 3072
LANE_RESERVE_MIB = 832
JOB_COUNT = 24
LONG_COUNT = DEVICE_COUNT


@dataclass(frozen=True)
class Kind:
    """The model that `mix_job.py` trains: `depth` linear and `cheap_depth` element-wise layers on `rows` x `width`."""

    name: str
    rows: int
    width: int
    depth: int
    cheap_depth: int

    @property
    def arguments(self):
        return (str(self.rows), str(self.width), str(self.depth), str(self.cheap_depth))


KINDS = (
    Kind("small", 16384, 64, 2, 16),
    Kind("medium", 24576, 64, 2, 36),
    Kind("large", 24576, 64, 1, 79),
    Kind("huge", 24576, 64, 1, 120),
)


@dataclass(frozen=True)
class Planned:
    name: str
    kind: Kind
    submit_s: float
    length_s: float
    is_long: bool
    iterations: int


def lengths_s(count):
    """`count` quantiles of the lengths, shortest first."""
    sigma, mean_s = PAPER["length_sigma"], PAPER["length_mean_s"]
    logarithms = NormalDist(math.log(mean_s) - sigma**2 / 2, sigma)
    drawn_s = (math.exp(logarithms.inv_cdf((number + 0.5) / count)) for number in range(count))
    return [min(max(length_s, PAPER["length_min_s"]) / SCALE, LONG_S) for length_s in drawn_s]


def mix(iteration_ms, seed=SEED, *, in_random_order=False, scale=1.0):
    """The jobs in the order of their submission. `iteration_ms` has the time of an iteration alone, for each kind."""
    dice = random.Random(seed)
    shorter_s = lengths_s(JOB_COUNT - LONG_COUNT)
    dice.shuffle(shorter_s)
    gap_s = LONG_S / len(shorter_s)
    at_s, jobs = 0.0, []
    for number, length_s in enumerate([LONG_S] * LONG_COUNT + shorter_s):
        is_long = number < LONG_COUNT
        if not is_long:
            at_s += dice.expovariate(1 / gap_s)
        kind = dice.choice(KINDS)
        iterations = max(ITERATIONS_MIN, round(length_s * scale * 1000 / iteration_ms[kind.name]))
        submit_s, length_s = round(at_s * scale, 3), round(length_s * scale, 3)
        jobs.append(Planned(f"j{number + 1:02d}", kind, submit_s, length_s, is_long, iterations))
    if in_random_order:
        places = [job.submit_s for job in jobs]
        dice.shuffle(jobs)
        jobs = [replace(job, submit_s=at_s) for job, at_s in zip(jobs, places, strict=True)]
    return tuple(jobs)
