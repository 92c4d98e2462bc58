"""The messages of a stored batch, decoded with bounded memory.

A compressed batch of a few hundred bytes can contain millions of messages. So this module never
decompresses, splits or holds a whole body: it works on windows of `window_bytes`, which is also the
most that one call into C handles while it holds the interpreter lock. Only a single message is held
as a whole, when a caller asks for messages. Does no I/O itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import zstandard
from xxhash import xxh3_64

from logd.batch import (
    INFLATE_BYTES,
    LINES,
    Buffer,
    Header,
    Read,
    ScannedBatch,
    count_lf,
    inflate_in_steps,
    reading,
)
from logd.errors import DamagedBatch

WINDOW_BYTES = 64 * 1024
CHUNK_MESSAGES = 256
CHUNK_BYTES = INFLATE_BYTES
_MAX_SIZE_DIGITS = 10


class BatchBody(NamedTuple):
    """The body of a batch, which can be read as often as needed."""

    header: Header
    position: int  # of the batch, for error messages
    read: Read
    at: int  # of the body, as `read` counts

    @classmethod
    def of(cls, found: ScannedBatch, read: Read) -> BatchBody:
        """The body of a scanned batch; a large one is read with `read`."""
        if len(found.body):
            return cls(found.header, found.position, reading(found.body), 0)
        return cls(found.header, found.position, read, found.position + found.header.head_size)

    def damaged(self, text: str) -> DamagedBatch:
        return DamagedBatch(text, self.position)


def verify(body: BatchBody) -> None:
    """Compare the body with the checksum in its header."""
    sum_ = xxh3_64()
    for window in _stored(body, WINDOW_BYTES):
        sum_.update(window)
    if sum_.hexdigest() != body.header.sum:
        raise body.damaged("a body that does not match its sum")


def text(body: BatchBody, first: int, count: int) -> Iterator[bytes]:
    """The bytes of `count` lines from the one with index `first`: a body of lines only."""
    return _line_range(body, _inflated(body, WINDOW_BYTES), first, count)


def messages(body: BatchBody, first: int, count: int) -> Iterator[list[bytes]]:
    """`count` messages from the one with index `first`, in lists of bounded size.

    A list has at most CHUNK_MESSAGES, and at most twice CHUNK_BYTES unless it is one message.
    """
    if body.header.enc.partition("+")[0] == LINES:
        return _bounded(_split(_line_range(body, _inflated(body, CHUNK_BYTES), first, count)))
    return _bounded(_sized(body, first, count))


def inflated_bytes(body: BatchBody) -> int:
    """How much memory a decompressor of this body may take."""
    if not body.header.enc.endswith("+zstd"):
        return 0
    head = bytes(body.read(body.at, min(body.header.size, 64)))
    try:
        return int(zstandard.frame_content_size(head))
    except zstandard.ZstdError as error:
        raise body.damaged(f"a body that is not zstd: {error}") from None


# -- bytes --------------------------------------------------------------------------------------


def _stored(body: BatchBody, window_bytes: int) -> Iterator[Buffer]:
    end = body.at + body.header.size
    for at in range(body.at, end, window_bytes):
        size = min(window_bytes, end - at)
        window = body.read(at, size)
        if len(window) != size:
            raise body.damaged("a batch that runs past the end")
        yield window


def _inflated(body: BatchBody, window_bytes: int) -> Iterator[bytes]:
    """The content of the body, in windows."""
    if not body.header.enc.endswith("+zstd"):
        yield from map(bytes, _stored(body, window_bytes))
        return
    try:
        yield from inflate_in_steps(_stored(body, CHUNK_BYTES), window_bytes)
    except zstandard.ZstdError as error:
        raise body.damaged(f"a body that is not zstd: {error}") from None


def _without(windows: Iterator[bytes], count: int) -> Iterator[bytes]:
    """The same bytes without the first `count`."""
    for window in windows:
        if count < len(window):
            yield window[count:] if count else window
            count = 0
        else:
            count -= len(window)


# -- lines --------------------------------------------------------------------------------------


def _line_range(
    body: BatchBody, windows: Iterator[bytes], first: int, count: int
) -> Iterator[bytes]:
    for window in windows:
        lines = count_lf(window)
        if lines < first:
            first -= lines
            continue
        rest = window[_after(window, first) :] if first else window
        lines, first = lines - first, 0
        if lines >= count:
            yield rest[: _after(rest, count)]
            return
        count -= lines
        if rest:
            yield rest
    raise body.damaged(f"a body that ends {count} lines too early")


def _after(window: bytes, lines: int) -> int:
    """The start of the line with this index."""
    if count_lf(window) == lines:
        return window.rfind(b"\n") + 1
    return len(window) - len(window.split(b"\n", lines)[-1])


def _split(windows: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Lines without their line ends; a line that spans windows is joined once."""
    begun: list[bytes] = []
    for window in windows:
        *whole, rest = window.split(b"\n")
        if whole:
            if begun:
                whole[0] = b"".join([*begun, whole[0]])
                begun.clear()
            yield whole
        if rest:
            begun.append(rest)


def _bounded(lists: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    for many in lists:
        if many and len(many[0]) > CHUNK_BYTES:
            yield many[:1]
            many = many[1:]
        for at in range(0, len(many), CHUNK_MESSAGES):
            yield many[at : at + CHUNK_MESSAGES]


# -- sized --------------------------------------------------------------------------------------


def _sized(body: BatchBody, first: int, count: int) -> Iterator[list[bytes]]:
    """Two passes at the same time: over the line of sizes, and over the messages after it."""
    start = _sizes_end(body)
    lists = _sizes(body)
    skipped = 0
    for sizes in lists:
        if len(sizes) > first:
            sizes, skipped = sizes[first:], skipped + sum(sizes[:first])
            break
        first, skipped = first - len(sizes), skipped + sum(sizes)
    else:
        raise body.damaged("a body with fewer sizes than messages")
    content = _Content(body, _without(_inflated(body, CHUNK_BYTES), start + skipped))
    for some in chain([sizes], lists):
        yield from content.messages(some[:count])
        count -= len(some)
        if count <= 0:
            return
    raise body.damaged("a body with fewer sizes than messages")


def _sizes_end(body: BatchBody) -> int:
    at = 0
    for window in _inflated(body, CHUNK_BYTES):
        found = window.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(window)
    raise body.damaged("a sized body without a line of sizes")


def _sizes(body: BatchBody) -> Iterator[list[int]]:
    begun = b""
    for window in _inflated(body, CHUNK_BYTES):
        line, end, _ = window.partition(b"\n")
        words = (begun + line).split(b" ")
        begun = b"" if end else words.pop()
        if len(begun) > _MAX_SIZE_DIGITS or not all(map(bytes.isdigit, words)):
            raise body.damaged("a sized body without a line of sizes")
        yield list(map(int, words))
        if end:
            return


class _Content:
    def __init__(self, body: BatchBody, windows: Iterator[bytes]) -> None:
        self._body, self._windows, self._window, self._at = body, windows, b"", 0

    def messages(self, sizes: list[int]) -> Iterator[list[bytes]]:
        """Messages of these sizes, in lists of at most CHUNK_BYTES or of one message."""
        many: list[bytes] = []
        many_bytes = 0
        for size in sizes:
            if many and many_bytes + size > CHUNK_BYTES:
                yield many
                many, many_bytes = [], 0
            many.append(self._take(size))
            many_bytes += size
        if many:
            yield many

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end <= len(self._window):
            message = self._window[self._at : end]
            self._at = end
            return message
        parts = [self._window[self._at :]]
        size -= len(parts[0])
        while size > 0:
            self._window = next(self._windows, b"")
            if not self._window:
                raise self._body.damaged("a body that is shorter than its sizes say")
            self._at = min(size, len(self._window))
            parts.append(self._window[: self._at])
            size -= self._at
        return b"".join(parts)
