"""A bar on stderr for long work, where somebody looks at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.numbers import bytes_text, count_text
from cli.terminal_text import escape_text

if TYPE_CHECKING:
    from rich.progress import Task

LONG_BYTES = 8 << 20  # from here on a progress bar is worth its import
_WHAT = 26  # columns for what is done: a topic's name may be long, a terminal has 80

Advance = Callable[[int], object]


def is_watched(quiet: bool) -> bool:
    """Would a bar be seen?"""
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress(what: str, total_bytes: int, quiet: bool) -> Iterator[Advance]:
    """What to call with the bytes done since the last call."""
    if total_bytes < LONG_BYTES or not is_watched(quiet):
        yield lambda size: None
        return
    with bar(what, total_bytes, bytes_text, "") as advance:
        yield advance


@contextmanager
def bar(
    what: str,
    total: int,
    text: Callable[[float], str] = count_text,
    unit: str = " messages",
) -> Iterator[Advance]:
    """The same for any number of anything, and at once."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Done(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = f"{text(task.completed)} of {text(task.total or 0)}{unit}"
            return Text(done, style="progress.download")

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{text(speed)}/s" if speed else "", style="progress.data.speed")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f}%"),
        Done(),
        Speed(),
        TimeRemainingColumn(compact=True),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as shown:
        what = escape_text(what)
        fits = what if len(what) <= _WHAT else f"{what[: _WHAT - 1]}…"
        task = shown.add_task(fits, total=total)
        yield lambda done: shown.advance(task, done)
