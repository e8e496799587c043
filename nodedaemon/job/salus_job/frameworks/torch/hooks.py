"""Turns PyTorch's activity into events: root forward, loader entry, backward, optimizer step.

`Module.__call__` is wrapped, because module hooks slow down every module call (1.1 -> 4.6 us, torch 2.13) and are
traced by torch.compile (docs/adr/0031). The wrapper costs half a microsecond and sees every root. It is marked so that
torch.compile never starts a frame in it: graphs and graph breaks are those of a plain run.

Each event goes first to the follower, which completes the expected ones in C, and then to the watch.
"""

import functools
import importlib
import os
from types import CodeType
from typing import Any, Callable, List, Mapping, Tuple

from salus_job.watch import Watch

# Name of the flag that torch sets while something is compiled or exported.
COMPILING = "_is_compiling_flag"


def install(torch: Any, watch: Watch) -> None:
    wrappers = [
        *_wrap_modules(torch, watch),
        *_wrap_loader(torch, watch),
        *_wrap_backward(torch, watch),
        *_hook_optimizers(torch, watch),
    ]
    handlers = _codes(*(getattr(Watch, name) for name in dir(Watch) if name.startswith("on_")))
    _hide_from_compiler(torch, wrappers, handlers)


def _wrap_modules(torch: Any, watch: Watch) -> List[CodeType]:
    plain = torch.nn.Module.__call__
    is_traced, compiler = _compiling_test(torch)
    is_grad_enabled, tensor_type = torch.is_grad_enabled, torch.Tensor
    follow_entered, follow_left = watch.follower.forward_entered, watch.follower.forward_left
    # One flag for all threads: only one thread is watched, and forwards of the others do not count while it is set.
    inside = [False]
    os.register_at_fork(after_in_child=functools.partial(inside.__setitem__, 0, False))

    # If the plain method only chooses between these two, choosing here saves most calls a frame.
    is_choice = plain.__code__.co_names == ("_compiled_call_impl", "_call_impl")

    @functools.wraps(plain)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if inside[0]:
            if is_choice and module._compiled_call_impl is None:
                return module._call_impl(*args, **kwargs)
            return plain(module, *args, **kwargs)
        if is_traced() or compiler[COMPILING]:
            return plain(module, *args, **kwargs)
        grad, training = is_grad_enabled(), getattr(module, "training", None)
        if not follow_entered(module, grad, training) and not watch.on_forward_entered(module, grad, training, args):
            return plain(module, *args, **kwargs)
        inside[0] = True
        output = None
        try:
            output = plain(module, *args, **kwargs)
            return output
        finally:
            inside[0] = False
            # Containers are not searched: any other output is assumed to carry a gradient.
            opens = output.requires_grad if isinstance(output, tensor_type) else output is not None
            if not follow_left(opens):
                watch.on_forward_left(module, grad, opens)

    torch.nn.Module.__call__ = call
    return _codes(call)


def _wrap_loader(torch: Any, watch: Watch) -> List[CodeType]:
    iterator_type: Any = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
    iterator_type.__next__ = _report_call(torch, watch, "loader", iterator_type.__next__)
    # Older releases have a second name for it.
    if hasattr(iterator_type, "next"):
        iterator_type.next = iterator_type.__next__
    return _codes(iterator_type.__next__)


def _wrap_backward(torch: Any, watch: Watch) -> List[CodeType]:
    torch.autograd.backward = _report_call(torch, watch, "backward", torch.autograd.backward)
    torch.autograd.grad = _report_call(torch, watch, "backward", torch.autograd.grad)
    return _codes(torch.autograd.backward)


def _report_call(torch: Any, watch: Watch, event: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function: report that it was entered and left."""
    is_traced, compiler = _compiling_test(torch)
    follow_entered, follow_left = (getattr(watch.follower, event + end) for end in ("_entered", "_left"))
    on_entered, on_left = (getattr(watch, "on_" + event + end) for end in ("_entered", "_left"))

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_traced() or compiler[COMPILING] or not (follow_entered() or on_entered()):
            return plain(*args, **kwargs)
        try:
            return plain(*args, **kwargs)
        finally:
            if not follow_left():
                on_left()

    return call


def _hook_optimizers(torch: Any, watch: Watch) -> List[CodeType]:
    # Not reachable as an attribute of torch.optim.
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    plain = optimizers.Optimizer.__init__
    is_traced, compiler = _compiling_test(torch)
    follow_entered, follow_left = watch.follower.step_entered, watch.follower.step_left

    @functools.wraps(plain)
    def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        plain(optimizer, *args, **kwargs)
        watch.on_optimizer_made(optimizer)

    def enter(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not (is_traced() or compiler[COMPILING] or follow_entered(optimizer)):
            watch.on_step_entered(optimizer)

    def leave(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not (is_traced() or compiler[COMPILING] or follow_left(optimizer)):
            watch.on_step_left(optimizer)

    optimizers.Optimizer.__init__ = make
    optimizers.register_optimizer_step_pre_hook(enter)
    optimizers.register_optimizer_step_post_hook(leave)
    return _codes(make, enter, leave)


def _codes(*functions: Any) -> List[CodeType]:
    return [function.__code__ for function in functions]


def _compiling_test(torch: Any) -> Tuple[Callable[[], bool], Mapping[str, Any]]:
    """torch.compiler.is_compiling() in two halves: when cold, they take a third of the time of the call.

    The compiler treats the first half as a constant, so a trace never contains the second.
    """
    compiler = vars(getattr(torch, "compiler", None) or object)
    if "is_dynamo_compiling" in compiler and isinstance(compiler.get(COMPILING), bool):
        return compiler["is_dynamo_compiling"], compiler
    return compiler.get("is_compiling", bool), {COMPILING: False}


def _hide_from_compiler(torch: Any, wrappers: List[CodeType], handlers: List[CodeType]) -> None:
    """Ask the frame evaluator never to start a graph in our wrappers; it still examines what they call.

    Our handlers are skipped with everything that they call: they call no user code.
    """
    evaluator = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if evaluator is None:
        return
    if hasattr(evaluator, "set_code_exec_strategy"):
        action = evaluator._FrameAction
        for code in wrappers:
            evaluator.set_code_exec_strategy(code, evaluator._FrameExecStrategy(action.SKIP, action.DEFAULT))
        for code in handlers:
            evaluator.set_code_exec_strategy(code, evaluator._FrameExecStrategy(action.SKIP, action.SKIP))
    elif hasattr(evaluator, "skip_code"):
        for code in wrappers + handlers:
            evaluator.skip_code(code)
