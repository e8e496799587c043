"""What a model is made of and what it is fed, as two numbers: a profile whose numbers differ belongs to another job.

Model: sorted parameter names and shapes of every root. Input: the shapes of the tensors of the first forward with
gradients, or of the first forward where there is none.
"""

import hashlib
from typing import Any, Iterable, List


def hash_lines(lines: Iterable[str]) -> int:
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).digest()
    # Zero stands for "not known yet" on the wire.
    return int.from_bytes(digest[:8], "little") or 1


def hash_models(modules: Iterable[Any]) -> int:
    lines: List[str] = []
    for module in modules:
        lines += sorted("%s:%s" % (name, tuple(value.shape)) for name, value in module.named_parameters())
    return hash_lines(lines) if lines else 0


def hash_inputs(arguments: Iterable[Any]) -> int:
    lines = ["%s:%s" % (tuple(one.shape), one.dtype) for one in _tensors(arguments)]
    return hash_lines(lines) if lines else 0


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            yield value
