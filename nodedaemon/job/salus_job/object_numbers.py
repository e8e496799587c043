"""Small numbers for modules and optimizers, so that what the rule has learned holds in the next run."""

import weakref
from typing import Any, Callable, Dict, List

# A job that creates a loss module in every iteration must not fill the tables: all later objects share this number.
NUMBER_MAX = 63


class ObjectNumbers:
    """Numbers objects in their order of appearance. `on_gone` is called when an address may be used again."""

    def __init__(self, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self._numbers: Dict[int, int] = {}
        self._references: Dict[int, Any] = {}
        self._next = 0

    def number_of(self, thing: Any) -> int:
        key = id(thing)
        number = self._numbers.get(key)
        if number is None:

            def forget(_: Any) -> None:
                self._forget(key)

            self._references[key] = weakref.ref(thing, forget)
            number = self._numbers[key] = self._next
            self._next = min(self._next + 1, NUMBER_MAX)
        return number

    def objects(self) -> List[Any]:
        objects = (reference() for reference in list(self._references.values()))
        return [thing for thing in objects if thing is not None]

    def _forget(self, key: int) -> None:
        self._numbers.pop(key, None)
        self._references.pop(key, None)
        self._on_gone()
