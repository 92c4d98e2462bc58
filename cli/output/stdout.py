"""Standard output for data and reports, standard error for notices.

A closed standard output, as with `head`, ends a command without an error. Control characters are
escaped on a terminal, and nowhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any, BinaryIO

import typer

from cli.exit_codes import OutputClosed, UsageError
from cli.output.terminal_text import escape, escape_text
from logd.wire.text import encode as _encode


class ReportFormat(StrEnum):
    text = "text"
    json = "json"


ReportOutput = Annotated[
    ReportFormat,
    typer.Option("-o", "--output", help="Output format; json prints one object per line."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not print notices to stderr.")]


class Stdout:
    """Standard output for bytes. On a terminal control characters are escaped, unless `raw`."""

    def __init__(self, file: BinaryIO, *, raw: bool) -> None:
        self._file = file
        self._is_escaped = file.isatty() and not raw
        self.fileno, self.flush = file.fileno, file.flush

    def rendered(self, data: bytes) -> bytes:
        """The bytes that `write` writes for `data`."""
        return escape(data) if self._is_escaped else data

    def write(self, data: bytes) -> None:
        self._file.write(self.rendered(data))

    def write_report(
        self, form: ReportFormat, objects: Iterable[dict[str, Any]], lines: Iterable[str]
    ) -> None:
        """The same report for a program or for a person; only one of the two is consumed."""
        texts = map(_encode, objects) if form is ReportFormat.json else lines
        self.write("".join(f"{text}\n" for text in texts).encode())


@contextmanager
def stdout(*, raw: bool = False) -> Iterator[Stdout]:
    if sys.stdout is None:
        raise UsageError("standard output is closed; redirect it to a file or to /dev/null")
    sys.stdout.flush()
    try:
        # A separate buffer: with PYTHONUNBUFFERED, sys.stdout has none and may write partially.
        with open(sys.stdout.fileno(), "wb", closefd=False) as out:
            yield Stdout(out, raw=raw)
    except (BrokenPipeError, OutputClosed):
        # The interpreter flushes sys.stdout at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def print_report(
    form: ReportFormat, objects: Iterable[dict[str, Any]], lines: Iterable[str]
) -> None:
    with stdout() as out:
        out.write_report(form, objects, lines)


def table(rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    """Lines with aligned columns: the first column to the left, the others to the right."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = str(row[0]).ljust(widths[0])
        yield "  ".join(cells)


def notice(text: str, quiet: bool = False) -> None:
    """Print one line to standard error."""
    if not quiet:
        print(f"log-cli: {escape_text(text)}", file=sys.stderr, flush=True)


def notifier(quiet: bool) -> Callable[[str], None]:
    """A `notice` for code that does not know the option --quiet."""
    return lambda text: notice(text, quiet)
