"""Model and input hashes distinguish jobs; sizes in a declaration are parsed."""

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


def test_the_model_hash_depends_on_shapes_and_not_on_the_order_of_parameters() -> None:
    expected = shapes.hash_models([FakeModule(a=(2, 3), b=(4,))])
    assert expected == shapes.hash_models([FakeModule(b=(4,), a=(2, 3))])
    assert expected != shapes.hash_models([FakeModule(a=(3, 2), b=(4,))])
    assert 0 < expected < 2**64


def test_a_hash_of_nothing_is_zero() -> None:
    assert shapes.hash_models([FakeModule()]) == 0
    assert shapes.hash_inputs(["text", 3]) == 0


def test_inputs_are_found_in_containers() -> None:
    tensor = FakeTensor((28, 3))
    assert shapes.hash_inputs([tensor]) == shapes.hash_inputs([{"x": [tensor]}])
    assert shapes.hash_inputs([tensor]) != shapes.hash_inputs([FakeTensor((14, 3))])


@pytest.mark.parametrize(("size", "size_bytes"), [(5, 5), ("7", 7), ("2k", 2048), ("3G", 3 << 30)])
def test_a_size_is_parsed(size: int | str, size_bytes: int) -> None:
    assert to_bytes(size) == size_bytes


@pytest.mark.parametrize("size", ["1X", "G", "", -1])
def test_a_bad_size_is_rejected(size: int | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        to_bytes(size)
