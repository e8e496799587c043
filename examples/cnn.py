"""Trains a small convolutional network on synthetic images with a DataLoader and evaluates it after every epoch.

Activations are many times larger than the parameters: the best case for sharing memory between iterations.
Plain PyTorch; raise --batch or --width to use more memory.
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASS_COUNT = 10
IMAGE_SIDE = 32


def build_model(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * width * 16, CLASS_COUNT),
    )


def build_loader(image_count, batch, *, shuffle, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(image_count, 3, IMAGE_SIDE, IMAGE_SIDE, generator=generator)
    labels = torch.randint(0, CLASS_COUNT, (image_count,), generator=generator)
    return DataLoader(TensorDataset(images, labels), batch_size=batch, shuffle=shuffle, generator=generator)


def evaluate(model, loader, device):
    model.eval()
    right_count = 0
    with torch.no_grad():
        for images, labels in loader:
            right_count += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
    model.train()
    return right_count / len(loader.dataset)


def checksum(*modules):
    tensors = [tensor for module in modules for tensor in module.state_dict().values()]
    return hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors)).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20, help="training iterations")
    parser.add_argument("--batch", type=int, default=28)
    parser.add_argument("--width", type=int, default=24, help="channels of the first layer")
    parser.add_argument("--epoch", type=int, default=10, help="iterations between two evaluations")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model(arguments.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    training = build_loader(arguments.epoch * arguments.batch, arguments.batch, shuffle=True, seed=arguments.seed)
    held_out = build_loader(2 * arguments.batch, arguments.batch, shuffle=False, seed=arguments.seed + 1)

    iteration = 0
    while iteration < arguments.iterations:
        for images, labels in training:
            optimizer.zero_grad()
            loss = loss_of(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            iteration += 1
            if iteration % 5 == 0 or iteration == arguments.iterations:
                print(f"iteration {iteration}/{arguments.iterations} loss {loss.item():.6f}", flush=True)
            if iteration == arguments.iterations:
                break
        print(f"evaluation after iteration {iteration}: accuracy {evaluate(model, held_out, device):.4f}", flush=True)
    print(f"checksum sha256:{checksum(model)}", flush=True)


if __name__ == "__main__":
    main()
