"""Answers requests with a fixed network: forward passes without gradients, as a server does.

The checksum covers the parameters and every answer, since the parameters do not change.
Plain PyTorch; raise --batch or --width to use more memory.
"""

import argparse
import hashlib
import time

import torch
from torch import nn

FEATURE_COUNT = 64


def build_model(width):
    return nn.Sequential(
        nn.Linear(FEATURE_COUNT, width),
        nn.GELU(),
        nn.LayerNorm(width),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, FEATURE_COUNT),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=40, help="requests to answer")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait before each request")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(arguments.width).to(device).eval()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())

    with torch.no_grad():
        for iteration in range(1, arguments.iterations + 1):
            if arguments.pause:
                time.sleep(arguments.pause)
            request = torch.randn(arguments.batch, FEATURE_COUNT).to(device)
            answer = model(request)
            digest.update(answer.cpu().numpy().tobytes())
            if iteration % 10 == 0 or iteration == arguments.iterations:
                print(f"iteration {iteration}/{arguments.iterations} mean {answer.mean().item():.6f}", flush=True)
    print(f"checksum sha256:{digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
