"""Compiles a module in every way that torch.compile offers and prints, as JSON, what the compiler counted for each.

The same program runs plainly and under the adaptor; the counts must not differ.
"""

import json
import warnings

import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters


class Broken(nn.Module):
    """Its graph breaks in the middle."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8))

    def forward(self, rows):
        hidden = self.first(rows)
        torch._dynamo.graph_break()
        return self.second(hidden)


def whole():
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)))


def train(module, call):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        call(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()


def compiled_module(module):
    return torch.compile(module, backend="aot_eager")


def compiled_function(module):
    return torch.compile(lambda rows: module(rows) * 2, backend="eager")


def compiled_in_place(module):
    module.compile(backend="eager")
    return module


def compiled_part(module):
    first = next(module.children())
    first.forward = torch.compile(first.forward, backend="eager")
    return module


def with_a_hook(module):
    module.register_forward_pre_hook(lambda _, rows: None)
    return torch.compile(module, backend="eager")


def main():
    warnings.simplefilter("ignore")
    counted = {}
    for make in (whole, Broken):
        for way in (compiled_module, compiled_function, compiled_in_place, compiled_part, with_a_hook):
            torch._dynamo.reset()
            counters.clear()
            torch.manual_seed(0)
            module = make()
            train(module, way(module))
            counted[f"{make.__name__} {way.__name__}"] = {
                "graphs": counters["stats"]["unique_graphs"],
                "breaks": sum(counters["graph_break"].values()),
                "frames": counters["frames"]["total"],
                "sum": sum(weight.sum().item() for weight in module.parameters()),
            }
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
