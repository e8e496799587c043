"""A model server of the inference case: real PyTorch, keeps its weights, answers requests that come now and then.

Requests come at times drawn with a seed; the latency of one is from the time it was due to its answer. With a file
named, the times count from the moment that the file holds, so that many servers begin together; FILE.SEED says that
this one is ready. They also end together: the end of a Python process takes a core for half a second, which the
requests of the others would feel.
"""

import gc
import json
import random
import sys
import time
from pathlib import Path

GO_SECONDS = 300


def wait_for_go(path, seed):
    """The moment from which requests count: now, or what the file says once it is there."""
    if path == "-":
        return time.time()
    Path(f"{path}.{seed}").touch()
    deadline = time.time() + GO_SECONDS
    while not Path(path).exists():
        if time.time() > deadline:
            sys.exit(f"no {path} after {GO_SECONDS} s")
        time.sleep(0.1)
    return float(Path(path).read_text())


def wait_until_due(at):
    while (left := at - time.time()) > 0:
        time.sleep(left)


def main():
    weight_mib, activation_mib, count, interval_ms, factor, seed = map(int, sys.argv[1:7])
    gc.disable()
    import torch
    from torch import nn

    gc.freeze()
    gc.enable()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    width = 256
    rows = activation_mib * 2**20 // (4 * width)
    # Most weights are read a row at a time, as an embedding's are; they stay, and cost little.
    table = nn.Embedding(weight_mib * 2**20 // (4 * width), width)
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(inplace=True), nn.Linear(width, 1)).eval()
    request = torch.randn(rows, 16)
    dice = random.Random(seed)
    with torch.no_grad():
        for _ in range(3):
            model(request)
        begun = at = wait_for_go(sys.argv[7], seed)
        latencies = []
        for _ in range(count):
            at += interval_ms / 1000 * dice.uniform(1, factor)
            wait_until_due(at)
            answer = model(request).mean() + table(torch.tensor([dice.randrange(table.num_embeddings)])).sum()
            latencies.append(round((time.time() - at) * 1000, 3))
    if sys.argv[7] != "-":
        wait_until_due(begun + count * factor * interval_ms / 1000)
    print(json.dumps({"latencies_ms": latencies, "checksum": f"{answer.item():.6e}", "ended": time.time()}), flush=True)


if __name__ == "__main__":
    main()
