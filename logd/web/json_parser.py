"""JSON that clients send: validated, and split without an object for every value in it.

8 MiB of JSON can contain four million values, which as Python objects take 300 MB and seconds. So a
body is validated as a whole (25 ms for 8 MiB at most), and then split element by element; an
element is a view of the body. The error texts of the decoder are not shown: they are meant for
programmers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from logd.batch import Buffer
from logd.errors import BadRequest

T = TypeVar("T")
# Invalid UTF-8 and too much nesting raise errors of their own.
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_STEP_ELEMENTS = 1000  # 0.1 ms
_TOKEN = re.compile(rb'[^"\[\]{},]*+(?:"(?:[^"\\]++|\\.)*+"|([\[\]{},]))', re.DOTALL)
ARRAY, _STRING = b'["'  # the first byte of such a value
_SPACE = b" \n\r\t"

try:
    from logd._native import elements as _elements
except ImportError:  # installed without a compiler

    def _elements(array: Buffer, at: int, most: int, /) -> tuple[list[tuple[int, int]], int]:
        """The start and end of up to `most` elements of a valid array, and the position of the
        next one: 0 if there is none, -1 if the array does not end."""
        spans: list[tuple[int, int]] = []
        start, depth = at, 0
        while len(spans) < most:
            token = _TOKEN.match(array, at)
            if token is None:
                return spans, -1
            at = token.end()
            closes = token[1] in (b"]", b"}")
            if depth == 0 and (closes or token[1] == b","):
                if span := _trim(array, start, at - 1):
                    spans.append(span)
                if closes:
                    return spans, 0
                start = at
            elif token[1] is not None and token[1] != b",":
                depth += -1 if closes else 1
        return spans, start

    def _trim(array: Buffer, start: int, end: int) -> tuple[int, int] | None:
        while start < end and array[start] in _SPACE:
            start += 1
        while start < end and array[end - 1] in _SPACE:
            end -= 1
        return (start, end) if start < end else None


def decode(data: bytes | memoryview, kind: type[T], error: str) -> T:
    """The value in `data`; BadRequest with the text `error` if it does not have this type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _INVALID:
        raise BadRequest(error) from None


def check(data: bytes | memoryview, error: str) -> None:
    """BadRequest with the text `error` unless `data` is one JSON value."""
    decode(data, msgspec.Raw, error)


def elements(array: memoryview, error: str) -> Iterator[memoryview]:
    """The elements of an array that was checked, without the space around them.

    BadRequest with the text `error` if it is another value."""
    if array[0] != ARRAY:
        raise BadRequest(error)
    at = 1
    while at > 0:
        spans, at = _elements(array, at, _STEP_ELEMENTS)
        for start, end in spans:
            yield array[start:end]
    if at < 0:
        raise BadRequest(error)


def text(value: memoryview) -> memoryview | bytes:
    """The text of a string that was checked, in UTF-8; any other value as it is."""
    if value[0] != _STRING:
        return value
    return decode(value, str, "a string in the body is not UTF-8").encode()
