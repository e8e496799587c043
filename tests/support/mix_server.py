"""A model server of the inference benchmark: real PyTorch that keeps its weights and answers occasional requests.

Requests come at random times from a seed. The latency of a request counts from the time it was due to its answer. If a
file is named, the times count from the moment that is written in it, so that many servers begin together; a server
creates FILE.SEED when it is ready. Servers also end together: the end of a Python process uses a core for half a
second, which would delay the requests of the others.
"""

import gc
import json
import random
import sys
import time
from pathlib import Path

GO_SECONDS = 300


def wait_for_go(path, seed):
    """The moment from which requests count: now, or the time in the file once it exists."""
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
    # Most weights are an embedding, which is read one row at a time: they stay in memory and cost little.
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
