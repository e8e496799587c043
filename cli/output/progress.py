"""Shows that long work goes on, on standard error and only to a person: a spinner, or a bar where the end is known."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Hands out a function that takes the name of each step as it begins."""
    if not sys.stderr.isatty():
        yield lambda _step: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        number = shown.add_task(what, total=None)
        yield lambda step: shown.update(number, description=f"{what}: {step}")


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Hands out a function that takes how much more is done of `total`."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        number = shown.add_task(what, total=total)
        yield lambda count: shown.advance(number, count)
