"""A progress bar on standard error for long operations, if it is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from cli.output.number_text import bytes_text, count_text
from cli.output.terminal_text import escape_text

if TYPE_CHECKING:
    from rich.progress import Task

LONG_BYTES = 8 << 20  # below this an operation is too short for a bar, which takes time to import
_LABEL_COLUMNS = 26  # a topic name may be long, a terminal has 80 columns

Advance = Callable[[int], object]


def is_bar_visible(quiet: bool) -> bool:
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


def progress(what: str, total_bytes: int, quiet: bool) -> AbstractContextManager[Advance]:
    """A bar over bytes, unless they are few. Call the result with the number of new bytes."""
    is_shown = total_bytes >= LONG_BYTES and is_bar_visible(quiet)
    return bar(what, total_bytes, bytes_text, "", is_shown=is_shown)


@contextmanager
def bar(
    what: str,
    total: int,
    text: Callable[[float], str] = count_text,
    unit: str = " messages",
    *,
    is_shown: bool,
) -> Iterator[Advance]:
    """A bar over any number of units."""
    if not is_shown:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class DoneColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            done = f"{text(task.completed)} of {text(task.total or 0)}{unit}"
            return Text(done, style="progress.download")

    class SpeedColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{text(speed)}/s" if speed else "", style="progress.data.speed")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        TextColumn("{task.percentage:>3.0f}%"),
        DoneColumn(),
        SpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as shown:
        label = escape_text(what)
        if len(label) > _LABEL_COLUMNS:
            label = f"{label[: _LABEL_COLUMNS - 1]}…"
        task = shown.add_task(label, total=total)
        yield lambda done: shown.advance(task, done)


@contextmanager
def repeated(action: Callable[[], object], interval_s: float) -> Iterator[None]:
    """Call `action` in a thread, again and again, until the block ends."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(interval_s):
            action()

    thread = threading.Thread(target=run, name="repeated-action", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
