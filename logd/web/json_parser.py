"""JSON that clients send: checked, and taken apart without an object for every value in it.

8 MiB of JSON can hold four million values, which as Python objects take 300 MB and seconds. So a
body is checked as a whole (25 ms at most for 8 MiB), and then walked element by element; an element
is a view of the body. Error texts are ours: what the decoder says is meant for programmers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from logd.batch import Buffer
from logd.errors import BadRequest

T = TypeVar("T")
# Not UTF-8 and nested too deeply have errors of their own.
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_AT_A_TIME = 1000  # elements: 0.1 ms
_TOKEN = re.compile(rb'[^"\[\]{},]*+(?:"(?:[^"\\]++|\\.)*+"|([\[\]{},]))', re.DOTALL)
ARRAY, _STRING = b'["'  # how such a value begins
_SPACE = b" \n\r\t"

try:
    from logd._native import elements as _elements
except ImportError:  # no compiler where this was installed

    def _elements(array: Buffer, at: int, most: int, /) -> tuple[list[tuple[int, int]], int]:
        """Where up to `most` elements of a sound array start and end, and where the next one
        starts: 0 if there is none, -1 if the array does not end."""
        spans: list[tuple[int, int]] = []
        start, depth = at, 0
        while len(spans) < most:
            token = _TOKEN.match(array, at)
            if token is None:
                return spans, -1
            at = token.end()
            closes = token[1] in (b"]", b"}")
            if depth == 0 and (closes or token[1] == b","):
                if span := _trimmed(array, start, at - 1):
                    spans.append(span)
                if closes:
                    return spans, 0
                start = at
            elif token[1] is not None and token[1] != b",":
                depth += -1 if closes else 1
        return spans, start

    def _trimmed(array: Buffer, start: int, end: int) -> tuple[int, int] | None:
        while start < end and array[start] in _SPACE:
            start += 1
        while start < end and array[end - 1] in _SPACE:
            end -= 1
        return (start, end) if start < end else None


def decode(data: bytes | memoryview, kind: type[T], otherwise: str) -> T:
    """The value in `data`; BadRequest with the text `otherwise` if there is none of this type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _NOT_JSON:
        raise BadRequest(otherwise) from None


def check(data: bytes | memoryview, otherwise: str) -> None:
    """BadRequest with the text `otherwise` unless this is one JSON value."""
    decode(data, msgspec.Raw, otherwise)


def elements(array: memoryview, otherwise: str) -> Iterator[memoryview]:
    """The elements of an array that was checked, without the space around them.

    BadRequest with the text `otherwise` if it is another value."""
    if array[0] != ARRAY:
        raise BadRequest(otherwise)
    at = 1
    while at > 0:
        spans, at = _elements(array, at, _AT_A_TIME)
        for start, end in spans:
            yield array[start:end]
    if at < 0:
        raise BadRequest(otherwise)


def text(value: memoryview) -> memoryview | bytes:
    """Of a string that was checked its text in UTF-8, of any other value its JSON."""
    if value[0] != _STRING:
        return value
    return decode(value, str, "a string in the body is not UTF-8").encode()
