"""Trains a generator against a discriminator, each with an optimizer of its own.

Iterations are short and need little ephemeral memory: the worst case for anything that costs time at every iteration.
Plain PyTorch; raise --batch or --width to use more memory.
"""

import argparse
import hashlib

import torch
from torch import nn

NOISE_COUNT = 32
SAMPLE_COUNT = 64


def build_network(inputs, width, outputs):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def checksum(*modules):
    tensors = [tensor for module in modules for tensor in module.state_dict().values()]
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--critic", type=int, default=1, help="discriminator steps for each generator step")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = build_network(NOISE_COUNT, arguments.width, SAMPLE_COUNT).to(device)
    discriminator = build_network(SAMPLE_COUNT, arguments.width, 1).to(device)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    loss_of = nn.BCEWithLogitsLoss()
    ones = torch.ones(arguments.batch, 1, device=device)
    zeros = torch.zeros(arguments.batch, 1, device=device)

    for iteration in range(1, arguments.iterations + 1):
        for _ in range(arguments.critic):
            real = torch.randn(arguments.batch, SAMPLE_COUNT).to(device) * 0.5 + 1.0
            fake = generator(torch.randn(arguments.batch, NOISE_COUNT).to(device))
            discriminator_optimizer.zero_grad()
            loss = loss_of(discriminator(real), ones) + loss_of(discriminator(fake.detach()), zeros)
            loss.backward()
            discriminator_optimizer.step()
        generator_optimizer.zero_grad()
        generator_loss = loss_of(discriminator(fake), ones)
        generator_loss.backward()
        generator_optimizer.step()
        if iteration % 10 == 0 or iteration == arguments.iterations:
            losses = f"loss {loss.item():.6f} generator {generator_loss.item():.6f}"
            print(f"iteration {iteration}/{arguments.iterations} {losses}", flush=True)
    print(f"checksum sha256:{checksum(generator, discriminator)}", flush=True)


if __name__ == "__main__":
    main()
