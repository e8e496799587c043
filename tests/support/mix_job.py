"""A training job of the side-by-side benchmark: real PyTorch, and nothing in it knows about Salus or Slurm.

Gradient descent is written out, because torch.optim imports the compiler, which takes another second. Allocations are
smaller than the size at which the C library returns memory at once, so an iteration costs the same with and without
lanes. The job prints one JSON line: when its first iteration ended, the time of each iteration, their CPU time and a
checksum of the parameters.
"""

import gc
import json
import os
import sys
import time

#: Iterations have a lower priority than jobs that start up: on a GPU they would not compete for a core at all. The
#: kernel gives nice 0 a weight of 1024, and nice 10 a weight of 110. If it groups processes by session (autogroup), the
#: weight counts only inside a job.
NICE = 10
NICE_WEIGHT = 1024 / 110


def build(nn, width, depth, cheap_depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.Tanh()]
    layers += [nn.Hardtanh() if number % 2 else nn.LeakyReLU() for number in range(cheap_depth)]
    return nn.Sequential(*layers)


def main():
    gc.disable()  # The import spends a fifth of its time in collections that find nothing.
    import torch
    from torch import nn

    gc.freeze()  # The collections at the end of the process find nothing either, and take half a second.
    gc.enable()
    rows, width, depth, cheap_depth, iterations, seed = map(int, sys.argv[1:7])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = build(nn, width, depth, cheap_depth)
    inputs, wanted = torch.randn(rows, width), torch.randn(rows, width)
    os.nice(NICE)
    first, spans, cpu_s = None, [], time.process_time()
    for _ in range(iterations):
        started = time.perf_counter()
        loss = (model(inputs) - wanted).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        del loss
        spans.append(round(time.perf_counter() - started, 4))
        first = first or time.time()
    cpu_s = round(time.process_time() - cpu_s, 3)
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(json.dumps({"first": first, "cpu_s": cpu_s, "checksum": f"{total:.9e}", "spans": spans}), flush=True)


if __name__ == "__main__":
    main()
