"""The interface of frameworks/base.py for PyTorch."""

from types import ModuleType
from typing import TYPE_CHECKING, Any, Iterable, Optional

from salus_job import layouts
from salus_job.frameworks.base import FrameworkAdaptor
from salus_job.frameworks.torch import hooks, shapes
from salus_job.frameworks.torch.accelerator import TorchAccelerator

if TYPE_CHECKING:
    from salus_job.watch import Watch


class TorchAdaptor(FrameworkAdaptor):
    number = layouts.FRAMEWORK_TORCH

    def __init__(self, framework: ModuleType) -> None:
        self._torch: Any = framework
        self.supports_accelerator = self._torch.version.cuda is not None

    def install_hooks(self, watch: "Watch") -> None:
        hooks.install(self._torch, watch)

    def is_loader_worker(self) -> bool:
        return self._torch.utils.data.get_worker_info() is not None

    def hash_models(self, models: Iterable[Any]) -> int:
        return shapes.hash_models(models)

    def hash_inputs(self, arguments: Iterable[Any]) -> int:
        return shapes.hash_inputs(arguments)

    def find_accelerator(self) -> Optional[TorchAccelerator]:
        cuda = getattr(self._torch, "cuda", None)
        is_used = cuda is not None and cuda.is_available() and cuda.is_initialized()
        return TorchAccelerator(cuda) if is_used else None
