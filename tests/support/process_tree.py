"""A program with many processes, of which only those that train may register. Prints their pids as JSON.

usage: process_tree.py fork|spawn|loader-fork|loader-spawn
"""

import json
import os
import sys

import torch
import torch.multiprocessing as processes
from torch import nn
from torch.utils.data import DataLoader, Dataset


def train(answers=None):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
    if answers is not None:
        answers.put(os.getpid())


class Features(Dataset):
    """A module computes the rows, so that the workers run forward passes too."""

    def __init__(self):
        self._model = nn.Linear(4, 4)

    def __len__(self):
        return 8

    def __getitem__(self, number):
        with torch.no_grad():
            return self._model(torch.full((4,), float(number)))


def main():
    kind = sys.argv[1]
    if kind.startswith("loader"):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        context = kind.partition("-")[2]
        for rows in DataLoader(Features(), batch_size=2, num_workers=2, multiprocessing_context=context):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
        print(json.dumps([os.getpid()]), flush=True)
        return
    context = processes.get_context(kind)
    answers = context.Queue()
    children = [context.Process(target=train, args=(answers,)) for _ in range(2)]
    for child in children:
        child.start()
    trainers = [answers.get(timeout=100) for _ in children]
    for child in children:
        child.join()
    print(json.dumps(trainers), flush=True)


if __name__ == "__main__":
    main()
