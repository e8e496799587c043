"""What Salus needs from a deep-learning framework.

The framework-neutral part (`Watch`) decides where iterations end and talks to the daemon. An adaptor provides the
events, the signature of the job, and the memory of the accelerator.
"""

import abc
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, List, Optional, Tuple

if TYPE_CHECKING:
    from salus_job.watch import Watch

# Address and size in bytes.
Range = Tuple[int, int]


class Accelerator(abc.ABC):
    """The framework's memory on one device, as running maxima over the iterations of this process."""

    live_persistent_bytes = 0
    live_ephemeral_bytes = 0
    # In reserved segments.
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


class FrameworkAdaptor(abc.ABC):
    """Created right after the framework was imported, before it has allocated anything."""

    # enum salus_framework of salus_wire.h
    number: ClassVar[int]

    @abc.abstractmethod
    def __init__(self, framework: ModuleType) -> None: ...

    @abc.abstractmethod
    def install_hooks(self, watch: "Watch") -> None:
        """Report the framework's events to `watch.follower` and, where that returns False, to `watch`."""

    @abc.abstractmethod
    def is_loader_worker(self) -> bool:
        """Whether this process only loads data for another one."""

    @abc.abstractmethod
    def hash_models(self, models: Iterable[Any]) -> int:
        """What the models are made of, as a number of 64 bits; 0 for unknown."""

    @abc.abstractmethod
    def hash_inputs(self, arguments: Iterable[Any]) -> int:
        """What a model is called with, as a number of 64 bits; 0 for unknown."""

    @property
    @abc.abstractmethod
    def supports_accelerator(self) -> bool:
        """Whether this build of the framework can use a GPU."""

    @abc.abstractmethod
    def find_accelerator(self) -> Optional[Accelerator]:
        """The device in use. None while the process has not used one; asking does not initialize it."""
