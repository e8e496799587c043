"""The signature of a job: what its models are made of and what they are called with, as two numbers.

The model hash covers the sorted parameter names and shapes of every root. The input hash covers the shapes and types of
the tensors in the first forward that has any.
"""

import hashlib
from typing import Any, Iterable, List


def hash_lines(lines: List[str]) -> int:
    if not lines:
        return 0
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).digest()
    # On the wire, 0 means unknown.
    return int.from_bytes(digest[:8], "little") or 1


def hash_models(models: Iterable[Any]) -> int:
    lines: List[str] = []
    for model in models:
        lines += sorted("%s:%s" % (name, tuple(value.shape)) for name, value in model.named_parameters())
    return hash_lines(lines)


def hash_inputs(arguments: Iterable[Any]) -> int:
    return hash_lines(["%s:%s" % (tuple(tensor.shape), tensor.dtype) for tensor in _tensors(arguments)])


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            yield value
