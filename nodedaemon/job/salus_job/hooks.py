"""Turns what torch does into events of a watch: root forward, loader entry, backward, optimizer step.

Measured, torch 2.13 (docs/boundaries.md): module hooks make every module call take the slow way (1.1 -> 4.6 us) and
are traced by torch.compile. A wrapper of `Module.__call__` costs half a microsecond, sees every root without a list of
them, and is marked so that torch.compile never starts a frame in it: graphs and breaks stay those of a plain run.
"""

import functools
import os
from types import CodeType, ModuleType
from typing import Any, Callable, Dict, List, Tuple

from salus_job.track import BACKWARD_ENTERED, BACKWARD_LEFT, LOADER_ENTERED, LOADER_LEFT
from salus_job.watch import Watch

# Set while something is compiled or exported.
COMPILING = "_is_compiling_flag"


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
    is_traced, compiler = _compiling_test(torch)
    is_grad_enabled, tensor_type = torch.is_grad_enabled, torch.Tensor
    pass_entered, pass_left = watch.followers.forward, watch.followers.forward_left
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
        if is_traced() or compiler[COMPILING]:
            return plain(module, *args, **kwargs)
        grad = is_grad_enabled()
        if not pass_entered(module, grad, getattr(module, "training", None)) and (
            watch.is_off or not watch.on_forward_entered(module, grad, args)
        ):
            return plain(module, *args, **kwargs)
        inside[0] = True
        output = None
        try:
            output = plain(module, *args, **kwargs)
            return output
        finally:
            inside[0] = False
            if type(output) is not tensor_type or not pass_left(output.requires_grad):
                watch.on_forward_left(module, grad, output)

    torch.nn.Module.__call__ = call
    return [call.__code__]


def _wrap_loader(watch: Watch) -> List[CodeType]:
    from torch.utils.data import dataloader

    plain = dataloader._BaseDataLoaderIter.__next__
    pass_event = watch.followers.event

    @functools.wraps(plain)
    def take(iterator):  # type: ignore[no-untyped-def]
        entered = pass_event(LOADER_ENTERED)
        if not entered:
            if watch.is_off:
                return plain(iterator)
            entered = watch.on_loader_entered()
        try:
            return plain(iterator)
        finally:
            if not pass_event(LOADER_LEFT):
                watch.on_loader_left(entered)

    dataloader._BaseDataLoaderIter.__next__ = take
    # `for` calls it under its other name in older releases.
    if hasattr(dataloader._BaseDataLoaderIter, "next"):
        dataloader._BaseDataLoaderIter.next = take
    return [take.__code__]


def _wrap_backward(torch: Any, watch: Watch) -> List[CodeType]:
    is_traced, compiler = _compiling_test(torch)
    pass_event = watch.followers.event

    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def propagate(*args, **kwargs):  # type: ignore[no-untyped-def]
            if is_traced() or compiler[COMPILING]:
                return plain(*args, **kwargs)
            entered = pass_event(BACKWARD_ENTERED)
            if not entered:
                if watch.is_off:
                    return plain(*args, **kwargs)
                entered = watch.on_backward_entered()
            try:
                return plain(*args, **kwargs)
            finally:
                if not pass_event(BACKWARD_LEFT):
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
    is_traced, compiler = _compiling_test(torch)
    pass_entered, pass_left = watch.followers.step, watch.followers.step_left

    @functools.wraps(plain)
    def make(optimizer, *args, **kwargs):  # type: ignore[no-untyped-def]
        plain(optimizer, *args, **kwargs)
        if not watch.is_off:
            watch.on_optimizer_made(optimizer)

    def enter(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not (is_traced() or compiler[COMPILING] or pass_entered(optimizer) or watch.is_off):
            watch.on_step_entered(optimizer)

    def leave(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not (is_traced() or compiler[COMPILING] or pass_left(optimizer) or watch.is_off):
            watch.on_step_left(optimizer)

    Optimizer.__init__ = make
    register_optimizer_step_pre_hook(enter)
    register_optimizer_step_post_hook(leave)
    return [make.__code__, enter.__code__, leave.__code__]


def _compiling_test(torch: Any) -> Tuple[Callable[[], bool], Dict[str, Any]]:
    """What torch.compiler.is_compiling() tells, in two halves: together they cost a third of it where they are cold.

    The first is a constant to the compiler and to nobody else, so that a trace never sees the second.
    """
    compiler = vars(getattr(torch, "compiler", None) or object)
    if "is_dynamo_compiling" in compiler and isinstance(compiler.get(COMPILING), bool):
        return compiler["is_dynamo_compiling"], compiler
    return compiler.get("is_compiling", bool), {COMPILING: False}


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
