"""Turns what torch does into events of a watch: root forward, loader entry, backward, optimizer step.

Measured, torch 2.13 (docs/boundaries.md): module hooks make every module call take the slow way (1.1 -> 4.6 us) and
are traced by torch.compile. A wrapper of `Module.__call__` costs half a microsecond, sees every root without a list of
them, and is marked so that torch.compile never starts a frame in it: graphs and breaks stay those of a plain run.
"""

import functools
import os
from types import CodeType, ModuleType
from typing import Any, Callable, List

from salus_job.watch import Watch


def install(torch: ModuleType, watch: Watch) -> None:
    wrappers = [
        *_wrap_modules(torch, watch),
        *_wrap_loader(watch),
        *_wrap_backward(torch, watch),
        *_hook_optimizers(torch, watch),
    ]
    events = [getattr(Watch, name).__code__ for name in dir(Watch) if name.startswith("on_")]
    _hide_from_compiler(torch, wrappers, events)


def _wrap_modules(torch: Any, watch: Watch) -> List[CodeType]:
    plain = torch.nn.Module.__call__
    is_compiling = _compiling_test(torch)
    # One word for all threads: only one is watched, and while it is inside a root nobody else's forward matters.
    inside = [False]
    os.register_at_fork(after_in_child=functools.partial(inside.__setitem__, 0, False))

    # Where the plain one only chooses between these two, most calls are spared a frame by choosing here.
    is_choice = plain.__code__.co_names == ("_compiled_call_impl", "_call_impl")

    @functools.wraps(plain)
    def call(module, *args, **kwargs):  # type: ignore[no-untyped-def]
        if inside[0]:
            if is_choice and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return plain(module, *args, **kwargs)
        if is_compiling() or watch.is_off:
            return plain(module, *args, **kwargs)
        entry = watch.on_forward_entered(module, args)
        if entry is None:
            return plain(module, *args, **kwargs)
        inside[0] = True
        output = None
        try:
            output = plain(module, *args, **kwargs)
            return output
        finally:
            inside[0] = False
            watch.on_forward_left(entry, output)

    torch.nn.Module.__call__ = call
    return [call.__code__]


def _wrap_loader(watch: Watch) -> List[CodeType]:
    from torch.utils.data import dataloader

    plain = dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(plain)
    def take(iterator):  # type: ignore[no-untyped-def]
        if watch.is_off:
            return plain(iterator)
        entered = watch.on_loader_entered()
        try:
            return plain(iterator)
        finally:
            watch.on_loader_left(entered)

    dataloader._BaseDataLoaderIter.__next__ = take
    # `for` calls it under its other name in older releases.
    if hasattr(dataloader._BaseDataLoaderIter, "next"):
        dataloader._BaseDataLoaderIter.next = take
    return [take.__code__]


def _wrap_backward(torch: Any, watch: Watch) -> List[CodeType]:
    is_compiling = _compiling_test(torch)

    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def propagate(*args, **kwargs):  # type: ignore[no-untyped-def]
            if is_compiling() or watch.is_off:
                return plain(*args, **kwargs)
            entered = watch.on_backward_entered()
            try:
                return plain(*args, **kwargs)
            finally:
                watch.on_backward_left(entered)

        return propagate

    torch.autograd.backward = wrap(torch.autograd.backward)
    torch.autograd.grad = wrap(torch.autograd.grad)
    return [torch.autograd.backward.__code__]


def _hook_optimizers(torch: Any, watch: Watch) -> List[CodeType]:
    # Not reachable as an attribute of torch.optim.
    from torch.optim.optimizer import (
        Optimizer,
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    plain = Optimizer.__init__
    is_compiling = _compiling_test(torch)

    @functools.wraps(plain)
    def make(optimizer, *args, **kwargs):  # type: ignore[no-untyped-def]
        plain(optimizer, *args, **kwargs)
        if not watch.is_off:
            watch.on_optimizer_made(optimizer)

    def enter(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling() and not watch.is_off:
            watch.on_step_entered(optimizer)

    def leave(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling() and not watch.is_off:
            watch.on_step_left(optimizer)

    Optimizer.__init__ = make
    register_optimizer_step_pre_hook(enter)
    register_optimizer_step_post_hook(leave)
    return [make.__code__, enter.__code__, leave.__code__]


def _compiling_test(torch: Any) -> Callable[[], bool]:
    compiler = getattr(torch, "compiler", None)
    test = getattr(compiler, "is_compiling", None)
    return test if test is not None else bool


def _hide_from_compiler(torch: Any, wrappers: List[CodeType], events: List[CodeType]) -> None:
    """Ask the frame evaluator never to start a graph in our wrappers; what they call is looked at as always.

    Our event methods are skipped with all that they call: there is nothing of the user's below them.
    """
    evaluator = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(evaluator, "set_code_exec_strategy"):
        action = evaluator._FrameAction
        for code in wrappers:
            evaluator.set_code_exec_strategy(code, evaluator._FrameExecStrategy(action.SKIP, action.DEFAULT))
        for code in events:
            evaluator.set_code_exec_strategy(code, evaluator._FrameExecStrategy(action.SKIP, action.SKIP))
    elif hasattr(evaluator, "skip_code"):
        for code in wrappers + events:
            evaluator.skip_code(code)
