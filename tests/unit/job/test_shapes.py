"""Model and input hashes tell jobs apart; sizes of a declaration are read."""

from dataclasses import dataclass

import pytest
from salus_job.api import to_bytes
from salus_job.frameworks.torch import shapes


@dataclass(frozen=True)
class FakeTensor:
    shape: tuple[int, ...]
    dtype: str = "float32"


class FakeModule:
    def __init__(self, **parameters: tuple[int, ...]) -> None:
        self._parameters = parameters

    def named_parameters(self) -> list[tuple[str, FakeTensor]]:
        return [(name, FakeTensor(shape)) for name, shape in self._parameters.items()]


def test_the_order_of_parameters_does_not_matter_their_shapes_do() -> None:
    one = shapes.hash_models([FakeModule(a=(2, 3), b=(4,))])
    assert one == shapes.hash_models([FakeModule(b=(4,), a=(2, 3))])
    assert one != shapes.hash_models([FakeModule(a=(3, 2), b=(4,))])
    assert 0 < one < 2**64


def test_nothing_to_hash_is_unknown() -> None:
    assert shapes.hash_models([FakeModule()]) == 0
    assert shapes.hash_inputs(["text", 3]) == 0


def test_inputs_are_found_in_containers() -> None:
    tensor = FakeTensor((28, 3))
    assert shapes.hash_inputs([tensor]) == shapes.hash_inputs([{"x": [tensor]}])
    assert shapes.hash_inputs([tensor]) != shapes.hash_inputs([FakeTensor((14, 3))])


@pytest.mark.parametrize(("size", "size_bytes"), [(5, 5), ("7", 7), ("2k", 2048), ("3G", 3 << 30)])
def test_sizes(size: int | str, size_bytes: int) -> None:
    assert to_bytes(size) == size_bytes


@pytest.mark.parametrize("size", ["1X", "G", "", -1])
def test_bad_sizes(size: int | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        to_bytes(size)
