"""What Salus needs from a deep-learning framework.

The framework-neutral part (`Watch`) decides where iterations end and talks to the daemon. An adaptor provides the
events, the signature of the job, and the memory of the accelerator.
"""

import abc
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Tuple

from salus_job import layouts

if TYPE_CHECKING:
    from salus_job.watch import Watch

# Address and size in bytes.
Range = Tuple[int, int]


class Accelerator(abc.ABC):
    """The framework's memory on one device, as running maxima over the iterations of this process."""

    live_persistent_bytes = 0
    live_ephemeral_bytes = 0
    # P, and what the reserved segments hold beyond it.
    persistent_bytes = 0
    ephemeral_bytes = 0

    @abc.abstractmethod
    def before_boundary(self) -> None:
        """Wait until the device is idle, then measure."""

    @abc.abstractmethod
    def after_boundary(self) -> None:
        """Start to measure the next iteration."""

    @abc.abstractmethod
    def cap(self, limit_bytes: int) -> bool:
        """Make the framework refuse allocations beyond `limit_bytes`. False if it cannot."""

    @abc.abstractmethod
    def drop_cache(self) -> None:
        """Release cached memory once, after learning: the first iterations do not represent the later ones."""

    @abc.abstractmethod
    def live_ranges(self) -> Optional[Dict[Range, List[Range]]]:
        """The live blocks in each cached segment, or None if unknown. A segment that is left out is kept whole."""


class FrameworkAdaptor:
    """The defaults, for a job without a framework and for what a framework does not provide.

    A subclass overrides `number` and `install_hooks`, and as many of the others as its framework allows. It is created
    with the framework's module right after the import, before the framework has allocated anything.
    """

    # enum salus_framework of salus_wire.h
    number = layouts.FRAMEWORK_NONE
    # Whether this build of the framework can use a GPU.
    supports_accelerator = False

    def install_hooks(self, watch: "Watch") -> None:
        """Report the framework's events to `watch.follower` and, where that returns False, to `watch`."""

    def is_loader_worker(self) -> bool:
        """Whether this process only loads data for another one."""
        return False

    def hash_models(self, _models: Iterable[Any]) -> int:
        """What the models are made of, as a 64-bit number; 0 means unknown."""
        return 0

    def hash_inputs(self, _arguments: Iterable[Any]) -> int:
        """What a model is called with, as a 64-bit number; 0 means unknown."""
        return 0

    def find_accelerator(self) -> Optional[Accelerator]:
        """The device in use. None while the process has not used one; asking does not initialize it."""
        return None
