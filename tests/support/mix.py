"""The jobs of the side-by-side: a busy cluster as the simulator's `paper` workload has it, on a small scale.

Lengths are those of nodedaemon/sim/data/paper.toml, divided by SCALE and cut at LONG_S: lognormal, as heavy-tailed as
traces of GPU clusters are. A device that is busy at a random moment is most likely held by a long job, for nearly all
of the work is in the few long ones. So the list begins with one job of LONG_S on each device, and jobs of any length
come all the while that these would hold the devices. Lengths are quantiles, not draws: a seed gives only order, kinds
and gaps. How many iterations make a length follows from what one takes on the machine at hand. Devices are as full as
the published models make them: a few jobs by their peaks, many by what they keep.

A job costs a core more than two seconds before and after its iterations, here on the device's own core: imports, the
first touch of its pages, the end. LONG_S is such that the jobs which come meanwhile, with all that, take three fifths
of the cores: near all of them, and jobs queue for the import, whatever the order of iterations.
SEED is the first that had been neither run nor simulated when it was committed. tests/bench/sidebyside.py also
simulates other seeds and a random order, which says how much of the result is due to the long jobs' coming first.
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
    """What `mix_job.py` trains: `depth` linear layers and `cheap_depth` element-wise ones over `rows` x `width`."""

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
    """So many quantiles of the lengths, shortest first."""
    sigma, mean_s = PAPER["length_sigma"], PAPER["length_mean_s"]
    logarithms = NormalDist(math.log(mean_s) - sigma**2 / 2, sigma)
    drawn_s = (math.exp(logarithms.inv_cdf((number + 0.5) / count)) for number in range(count))
    return [min(max(length_s, PAPER["length_min_s"]) / SCALE, LONG_S) for length_s in drawn_s]


def mix(iteration_ms, seed=SEED, *, in_random_order=False, scale=1.0):
    """The jobs in the order of their submission; `iteration_ms` says for each kind what an iteration takes alone."""
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
