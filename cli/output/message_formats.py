"""Output formats of messages: each one converts a batch to the bytes to write.

Message bytes are never changed, except in JSON: a message that is not UTF-8 is written as base64
under the key `message_base64`.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from cli.exit_codes import UsageError
from logd.wire.text import iso_time, json_objects

if TYPE_CHECKING:
    from logd.wire.read_state import Batch

Render = Callable[["Batch"], bytes]
FIELDS = ("topic", "offset", "time", "time_ms", "size", "message")
_ALIASES = {"value": "message"}  # the Python classes use this name
_ESCAPE = re.compile(r"\\([nrt0\\])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}


class OutputFormat(StrEnum):
    text = "text"
    json = "json"
    raw = "raw"


def renderer(topic: str, form: OutputFormat, template: str | None) -> Render:
    if template is not None:
        return _by_template(topic, template)
    if form is OutputFormat.json:
        return lambda batch: _as_json(topic, batch)
    return _as_text if form is OutputFormat.text else _as_raw


def is_raw(form: OutputFormat, template: str | None) -> bool:
    """True if messages are written unchanged even to a terminal."""
    return form is OutputFormat.raw and template is None


def each_renderer(form: OutputFormat, template: str | None) -> Callable[[str], Render]:
    """A renderer per topic; in plain text each line starts with the name of its topic."""
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
    """Each literal text and the field that follows it ("" for none)."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        raise UsageError("unmatched brace in --format: use {{ or }} for a literal brace") from None
    for text, field, spec, conversion in parts:
        field = _ALIASES.get(field or "", field)
        if field is not None and (field not in FIELDS or spec or conversion):
            known = ", ".join(f"{{{name}}}" for name in (*FIELDS, *_ALIASES))
            raise UsageError(f"unknown field in --format: use {known}")
        text = _ESCAPE.sub(lambda match: _ESCAPED[match[1]], text)
        yield os.fsencode(text), field or ""
