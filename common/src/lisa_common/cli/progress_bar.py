"""Progress of long work, on stderr and at a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(label: str, total: int | None, *, in_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """Shows a bar while the block runs; yields the function to call with each step. `total` is None if unknown."""
    if not sys.stderr.isatty():
        # In some versions of rich even a disabled bar ends with an empty line.
        yield lambda _: None
        return
    # Imported here, as only terminals need rich, which takes long.
    from rich import progress as rich  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    counter = rich.DownloadColumn() if in_bytes else rich.MofNCompleteColumn()
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), counter, rich.TimeRemainingColumn())
    with rich.Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda step: bar.advance(task, step)
