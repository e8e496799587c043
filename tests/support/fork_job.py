"""A PyTorch job that forks while its tensors are in a lane: the two cases that a naive shared mapping breaks.

Run as a program with the path of the socket. Prints one JSON object with what parent and children saw.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "nodedaemon" / "job"))
from salus_job import binding, layouts  # noqa: E402


class Doubling(Dataset):
    """Each worker changes its rows in place, as careless transforms do."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index].mul_(2)


def run_child(tensor: torch.Tensor) -> bool:
    """Fork a child that fills the lane; true if it saw the parent's tensor and succeeded."""
    child = os.fork()
    if child == 0:
        has_seen = bool((tensor == 3).all())
        blocks = [torch.full((256, 1024), 7.0) for _ in range(16)]
        os._exit(0 if has_seen and all(bool((block == 7).all()) for block in blocks) else 1)
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    torch.set_num_threads(1)
    library = binding.load(str(ROOT / "nodedaemon" / "job" / "libsalus" / "libsalus.so"))
    hooked = library.salus_hook()
    options = layouts.HelloOptions(size_bytes=ctypes.sizeof(layouts.HelloOptions), framework=layouts.FRAMEWORK_TORCH)
    attached = library.salus_hello(sys.argv[1].encode(), ctypes.byref(options), ctypes.byref(layouts.HelloView()))
    library.salus_boundary()
    rows = torch.ones(64, 4096)
    kept = torch.full((256, 1024), 3.0)
    loader = DataLoader(Doubling(rows), batch_size=8, num_workers=2, multiprocessing_context="fork")
    answer = {
        "hooked": hooked,
        "attached": attached,
        "in_lane": [library.salus_is_lane(tensor.data_ptr()) for tensor in (rows, kept)],
        "batches_doubled": all(bool((batch == 2).all()) for batch in loader),
        "dataset_unchanged": bool((rows == 1).all()),
        "child_ended_well": run_child(kept),
        "tensor_unchanged": bool((kept == 3).all()),
        "still_in_lane": library.salus_is_lane(torch.zeros(1024, 256).data_ptr()),
    }
    library.salus_bye()
    print(json.dumps(answer | {"after_bye": bool((kept == 3).all()) and bool((rows == 1).all())}))


if __name__ == "__main__":
    main()
