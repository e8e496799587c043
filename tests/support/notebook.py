"""Behaves like a notebook: trains briefly for each cell (a file `cell1`, `cell2`, ...) and idles in between.

notebook.py FOLDER CELLS
"""

import sys
import time
from pathlib import Path

import torch


def wait_for_cell(path):
    """Wait for the next cell, however long that takes. Only the end of the allocation ends this."""
    while not path.exists():
        time.sleep(0.02)


def main():
    folder, cell_count = Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for cell in range(1, cell_count + 1):
        wait_for_cell(folder / f"cell{cell}")
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(torch.randn(256, 64)).square().mean()
            loss.backward()
            optimizer.step()
        (folder / f"done{cell}").write_text(f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
