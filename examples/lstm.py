"""Trains a stateful LSTM: the hidden state of one iteration is the input of the next one.

The state is small but must be right: if another job used this memory between two iterations and the state were not
saved, the result would differ. Plain PyTorch; raise --batch or --width to use more memory.
"""

import argparse
import hashlib

import torch
from torch import nn

FEATURE_COUNT = 32


def checksum(*modules):
    tensors = [tensor for module in modules for tensor in module.state_dict().values()]
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="time steps in one iteration")
    parser.add_argument("--width", type=int, default=128, help="hidden units")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recurrent = nn.LSTM(FEATURE_COUNT, arguments.width, num_layers=2, batch_first=True).to(device)
    head = nn.Linear(arguments.width, FEATURE_COUNT).to(device)
    optimizer = torch.optim.Adam([*recurrent.parameters(), *head.parameters()], lr=1e-3)
    state = tuple(torch.zeros(2, arguments.batch, arguments.width, device=device) for _ in range(2))

    for iteration in range(1, arguments.iterations + 1):
        series = torch.randn(arguments.batch, arguments.length + 1, FEATURE_COUNT).cumsum(1).to(device)
        optimizer.zero_grad()
        hidden, state = recurrent(series[:, :-1], state)
        loss = nn.functional.mse_loss(head(hidden), series[:, 1:])
        loss.backward()
        optimizer.step()
        state = tuple(part.detach() for part in state)
        if iteration % 3 == 0 or iteration == arguments.iterations:
            print(f"iteration {iteration}/{arguments.iterations} loss {loss.item():.6f}", flush=True)
    print(f"checksum sha256:{checksum(recurrent, head)}", flush=True)


if __name__ == "__main__":
    main()
