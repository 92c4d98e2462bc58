"""A bar on stderr for long work, where somebody looks at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG_BYTES = 8 << 20  # from here on a progress bar is worth its import


@contextmanager
def progress(total_bytes: int, quiet: bool) -> Iterator[Callable[[int], object]]:
    """What to call with the bytes done since the last call."""
    if quiet or total_bytes < LONG_BYTES or not sys.stderr.isatty():
        yield lambda size: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda size: bar.advance(task, size)
