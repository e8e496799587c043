"""Trains a model and prints its memory as JSON: measured by Salus, computed from its tensors, and by torch's profiler.

usage: measured_models.py mlp|cnn|transformer   (under the adaptor)
"""

import itertools
import json
import sys

import torch
from salus_job import process
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, IterableDataset

ITERATIONS = 5


class Batches(IterableDataset):
    """Makes each batch on demand: a dataset in memory would be live at every boundary."""

    def __init__(self, shape):
        self._shape = shape

    def __iter__(self):
        return (torch.randn(self._shape) for _ in itertools.count())


def build(name):
    torch.manual_seed(0)
    if name == "mlp":
        model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
        return model, torch.optim.Adam(model.parameters()), (64, 256)
    if name == "cnn":
        model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten())
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), (8, 3, 16, 16)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return model, torch.optim.AdamW(model.parameters()), (4, 16, 64)


def tensors_of(model, optimizer):
    yield from model.parameters()
    yield from model.buffers()
    yield from (weight.grad for weight in model.parameters() if weight.grad is not None)
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def profiled_peak_bytes(iterate):
    """Peak of the memory that torch's profiler saw allocated and freed in one iteration.

    The profiler does not know what was allocated before, so its sum starts at zero. Our peak must not count it either.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        iterate()
    changes = [event.nbytes() for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(changes))


def main():
    model, optimizer, shape = build(sys.argv[1])
    batches = iter(DataLoader(Batches(shape), batch_size=None))

    def iterate():
        rows = next(batches)
        optimizer.zero_grad(set_to_none=False)
        model(rows).square().mean().backward()
        optimizer.step()

    for _ in range(2):
        iterate()
    session = process.current_watch().session
    session._library.salus_counters_reset()
    for _ in range(ITERATIONS):
        iterate()
    figures = session.read_counters()
    analytic_bytes = sum(tensor.untyped_storage().nbytes() for tensor in tensors_of(model, optimizer))
    print(
        json.dumps({**figures, "analytic_bytes": analytic_bytes, "profiled_bytes": profiled_peak_bytes(iterate)}),
        flush=True,
    )


if __name__ == "__main__":
    main()
