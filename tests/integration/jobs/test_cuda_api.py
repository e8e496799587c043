"""The adaptor's CUDA part against torch itself: the names and arguments that it uses, and all of it on a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

# The calls of accelerator.py with their arguments.
CALLS: dict[str, tuple[object, ...]] = {
    "is_available": (),
    "is_initialized": (),
    "synchronize": (),
    "memory_allocated": (),
    "max_memory_allocated": (),
    "max_memory_reserved": (),
    "reset_peak_memory_stats": (),
    "set_per_process_memory_fraction": (0.5,),
    "mem_get_info": (),
    "memory_snapshot": (),
    "empty_cache": (),
}


@pytest.mark.parametrize("name", CALLS)
def test_torch_has_the_call(name: str) -> None:
    inspect.signature(getattr(torch.cuda, name)).bind(*CALLS[name])


def test_torch_has_everything_that_is_wrapped() -> None:
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    wrapped: list[Callable[..., object]] = [
        torch.nn.Module.__call__,
        _BaseDataLoaderIter.__next__,
        torch.autograd.backward,
        torch.autograd.grad,
        Optimizer.__init__,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
        torch.compiler.is_compiling,
    ]
    assert all(callable(one) for one in wrapped)


def test_without_a_gpu_there_is_no_accelerator() -> None:
    from salus_job.frameworks.torch.adaptor import TorchAdaptor

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert TorchAdaptor(torch).find_accelerator() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here (CPU build or no driver)")
def test_boundaries_on_a_gpu_measure_persistent_and_ephemeral_bytes() -> None:
    from salus_job.frameworks.torch.adaptor import TorchAdaptor

    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    device = TorchAdaptor(torch).find_accelerator()
    assert device is not None

    def iterate() -> None:
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        iterate()
        device.before_boundary()
        device.after_boundary()
    kept_bytes = sum(2 * weight.numel() * weight.element_size() for weight in model.parameters())
    assert device.live_persistent_bytes >= kept_bytes
    assert device.live_ephemeral_bytes >= 4096 * 1024 * 4
    assert device.live_ranges() is not None
    assert device.cap(torch.cuda.get_device_properties(0).total_memory)
