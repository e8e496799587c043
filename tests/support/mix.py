"""The jobs of the side-by-side: drawn with a seed, and fixed before the runs that are recorded.

Many short jobs behind a few long ones: most of the work is in a small part of the jobs, as in traces of GPU clusters.
One long training a device comes first, then short jobs come at random times, while the long ones would still run.
Parameters were looked for with the simulator, by the gain of `srtf`: a mix that suits it. `make bench BENCH=sidebyside`
also simulates other seeds and a random order, which says how much of the result is due to this choice.
"""

import random
from dataclasses import dataclass, replace

SEED = 1
DEVICE_COUNT = 2
DEVICE_MIB = 5120
LANE_RESERVE_MIB = 640
LONG_COUNT = 2
LONG_S = (40.0, 48.0)  # drawn evenly
SHORT_COUNT = 22
SHORT_MEAN_S = 1.0  # exponential
SHORT_S = (0.5, 3.0)  # cut to
GAP_MEAN_S = 1.8  # Poisson arrivals


@dataclass(frozen=True)
class Kind:
    """What `mix_job.py` trains: `depth` linear layers and `cheap_depth` element-wise ones over `rows` x `width`.

    `iteration_ms` turns a length into a number of iterations and is rough; what is compared and simulated is measured.
    """

    name: str
    rows: int
    width: int
    depth: int
    cheap_depth: int
    iteration_ms: float

    @property
    def arguments(self):
        return (str(self.rows), str(self.width), str(self.depth), str(self.cheap_depth))


KINDS = (
    Kind("small", 16384, 64, 2, 0, 25.0),
    Kind("medium", 32768, 64, 2, 4, 60.0),
    Kind("large", 32768, 64, 2, 16, 80.0),
    Kind("huge", 49152, 64, 1, 26, 100.0),
)


@dataclass(frozen=True)
class Planned:
    name: str
    kind: Kind
    submit_s: float
    length_s: float
    is_long: bool

    @property
    def iterations(self):
        return max(1, round(self.length_s * 1000 / self.kind.iteration_ms))

    def scaled(self, factor):
        return replace(self, submit_s=self.submit_s * factor, length_s=self.length_s * factor)


def mix(seed=SEED, *, in_random_order=False):
    """The jobs in the order of their submission."""
    dice = random.Random(seed)
    at_s, jobs = 0.0, []
    for number in range(LONG_COUNT + SHORT_COUNT):
        is_long = number < LONG_COUNT
        length_s = (
            dice.uniform(*LONG_S) if is_long else min(max(dice.expovariate(1 / SHORT_MEAN_S), SHORT_S[0]), SHORT_S[1])
        )
        jobs.append(Planned(f"j{number + 1:02d}", dice.choice(KINDS), round(at_s, 3), round(length_s, 3), is_long))
        at_s += dice.expovariate(1 / GAP_MEAN_S)
    if in_random_order:
        places = [job.submit_s for job in jobs]
        dice.shuffle(jobs)
        jobs = [replace(job, submit_s=at_s) for job, at_s in zip(jobs, places, strict=True)]
    return tuple(jobs)
