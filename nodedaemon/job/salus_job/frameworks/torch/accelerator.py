"""PyTorch's CUDA memory, as its own caching allocator reports it.

Kernel launches are asynchronous, so a boundary has to wait until the device is idle. P is what is live at a boundary,
and E is the rest of the reserved peak. Names and arguments differ between builds: everything is looked up, and what is
missing is left out.
"""

from typing import Any, Dict, List, Optional

from salus_job.frameworks.base import Accelerator, Range

LIVE_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free")


class TorchAccelerator(Accelerator):
    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._start_bytes = cuda.memory_allocated()

    def before_boundary(self) -> None:
        self._cuda.synchronize()
        live_bytes = self._cuda.memory_allocated()
        peak_bytes = self._cuda.max_memory_allocated()
        reserved_bytes = self._cuda.max_memory_reserved()
        self.live_persistent_bytes = max(self.live_persistent_bytes, live_bytes)
        self.live_ephemeral_bytes = max(self.live_ephemeral_bytes, peak_bytes - self._start_bytes)
        # A segment is lent whole: an iteration borrows what is reserved beyond the bytes that stay.
        self.persistent_bytes = max(self.persistent_bytes, live_bytes)
        self.ephemeral_bytes = max(self.ephemeral_bytes, reserved_bytes - live_bytes)

    def after_boundary(self) -> None:
        self._start_bytes = self._cuda.memory_allocated()
        self._cuda.reset_peak_memory_stats()

    def cap(self, limit_bytes: int) -> bool:
        limit = getattr(self._cuda, "set_per_process_memory_fraction", None)
        information = getattr(self._cuda, "mem_get_info", None)
        if limit is None or information is None:
            return False
        _, total_bytes = information()
        limit(min(1.0, limit_bytes / total_bytes))
        return True

    def drop_cache(self) -> None:
        self._cuda.empty_cache()

    def live_ranges(self) -> Optional[Dict[Range, List[Range]]]:
        snapshot = getattr(self._cuda, "memory_snapshot", None)
        if snapshot is None:
            return None
        ranges: Dict[Range, List[Range]] = {}
        for segment in snapshot():
            blocks = _live_blocks(segment)
            if blocks is not None:
                ranges[(segment["address"], segment["total_size"])] = blocks
        return ranges


def _live_blocks(segment: Dict[str, Any]) -> Optional[List[Range]]:
    try:
        address = segment["address"]
        live: List[Range] = []
        for block in segment["blocks"]:
            # Older builds give no address; their blocks follow each other without a gap.
            address = block.get("address", address)
            if block["state"] in LIVE_STATES:
                live.append((address, block["size"]))
            elif block["state"] != "inactive":
                return None
            address += block["size"]
    except (KeyError, TypeError):
        return None
    return live if address <= segment["address"] + segment.get("total_size", 0) else None
