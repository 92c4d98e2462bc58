"""How messages look on stdout: each form turns a batch into the bytes to write.

The forms hand a message's bytes through as they are. Only JSON has to choose: text where it is
UTF-8, else base64 under a name of its own.
"""

from __future__ import annotations

import os
import re
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, BinaryIO

import typer

from cli.exit_codes import Misuse, OutputGone
from cli.terminal_text import escape, escape_text
from logd.wire.text import encode as _encode
from logd.wire.text import iso_time, json_objects

if TYPE_CHECKING:
    from logd.wire.read_state import Batch

Render = Callable[["Batch"], bytes]
FIELDS = ("topic", "offset", "time", "time_ms", "size", "message")
_SAME = {"value": "message"}  # what the Python classes call it
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_NAMES = ("topic", "id")  # text, even where it is all digits
_ESCAPE = re.compile(r"\\([nrt0\\])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


class OutputFormat(StrEnum):
    text = "text"
    json = "json"
    raw = "raw"


class Table(StrEnum):
    text = "text"
    json = "json"


def renderer(topic: str, form: OutputFormat, template: str | None) -> Render:
    if template is not None:
        return _by_template(topic, template)
    if form is OutputFormat.json:
        return lambda batch: _as_json(topic, batch)
    return _as_text if form is OutputFormat.text else _as_raw


def is_raw(form: OutputFormat, template: str | None) -> bool:
    """Are messages written unchanged, to a terminal too?"""
    return form is OutputFormat.raw and template is None


def each_renderer(form: OutputFormat, template: str | None) -> Callable[[str], Render]:
    """For several topics: in plain text each line says which topic it is from."""
    if form is OutputFormat.text and template is None:
        template = "{topic}: {message}"
    return cache(lambda topic: renderer(topic, form, template))


def _as_text(batch: Batch) -> bytes:
    return b"\n".join(batch.messages) + b"\n"


def _as_raw(batch: Batch) -> bytes:
    return b"".join(batch.messages)


def _as_json(topic: str, batch: Batch) -> bytes:
    messages = enumerate(batch.messages, batch.offset)
    return "".join(f"{one}\n" for one in json_objects(topic, batch.time_ms, messages)).encode()


def json_line(fields: dict[str, object]) -> bytes:
    return f"{_encode(fields)}\n".encode()


def stat_value(name: str, text: str) -> int | str:
    """A value of STATS as JSON has it."""
    return int(text) if name not in _NAMES and _NUMBER.fullmatch(text) else text


def _by_template(topic: str, template: str) -> Render:
    pieces = list(_pieces(template))

    def render(batch: Batch) -> bytes:
        values = {
            "topic": topic.encode(),
            "time": iso_time(batch.time_ms).encode(),
            "time_ms": b"%d" % batch.time_ms,
        }
        lines = []
        for offset, message in enumerate(batch.messages, batch.offset):
            values["offset"], values["message"] = b"%d" % offset, message
            values["size"] = b"%d" % len(message)
            lines.append(b"".join([text + values.get(field, b"") for text, field in pieces]))
        return b"\n".join(lines) + b"\n"

    return render


def _pieces(template: str) -> Iterator[tuple[bytes, str]]:
    """Text, and the field that follows it ("" for none)."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        raise Misuse("--format has a single brace; write {{ or }} for a brace itself") from None
    for text, field, spec, conversion in parts:
        field = _SAME.get(field or "", field)
        if field is not None and (field not in FIELDS or spec or conversion):
            known = ", ".join(f"{{{name}}}" for name in (*FIELDS, *_SAME))
            raise Misuse(f"--format has a field that is not known; write {known}")
        text = _ESCAPE.sub(lambda match: _ESCAPED[match[1]], text)
        yield os.fsencode(text), field or ""


def table(rows: Sequence[tuple[object, ...]]) -> str:
    """Rows of text with aligned columns: the first one to the left, numbers to the right."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = str(row[0]).ljust(widths[0])
        lines.append("  ".join(cells))
    return "\n".join(lines)


class Out:
    """Standard output for bytes. On a terminal control characters are escaped, unless `raw`."""

    def __init__(self, file: BinaryIO, *, raw: bool) -> None:
        self._file = file
        self._is_escaped = file.isatty() and not raw
        self.fileno, self.flush = file.fileno, file.flush

    def rendered(self, data: bytes) -> bytes:
        """What `write` writes for these bytes."""
        return escape(data) if self._is_escaped else data

    def write(self, data: bytes) -> None:
        self._file.write(self.rendered(data))


@contextmanager
def stdout(*, raw: bool = False) -> Iterator[Out]:
    """That the reader of it goes away, as `head` does, is no error."""
    if sys.stdout is None:
        raise Misuse("standard output is closed; send it somewhere, if only to /dev/null")
    sys.stdout.flush()
    try:
        # A buffer of its own: under PYTHONUNBUFFERED sys.stdout has none, and may write in part.
        with open(sys.stdout.fileno(), "wb", closefd=False) as out:
            yield Out(out, raw=raw)
    except (BrokenPipeError, OutputGone):
        # So that the interpreter's own flush at exit has nothing to complain about.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def notice(text: str, quiet: bool = False) -> None:
    """A remark for the person, never among the data."""
    if not quiet:
        print(f"log-cli: {escape_text(text)}", file=sys.stderr, flush=True)
