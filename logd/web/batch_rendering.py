"""From stored batches to the bytes of an HTTP response, in bounded steps.

A `Walk` goes over the batches of one READ. `step` runs on a thread and returns about PIECE_BYTES of
output, or what it has after STEP_S. Always: no step holds a whole body or a whole reply, and the
output so far ends at a `Place`, from which another walk continues with the next byte. So a walk can
be dropped at any time, which is what `Kept` does with those whose clients do not take their output.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from logd.batch import LINES, ScannedBatch, scan
from logd.web.async_service import Planned
from logd.wire.batch_decoder import WINDOW_BYTES, BatchBody, inflated_bytes, messages, text, verify
from logd.wire.read_state import Gap, ReadState, Rewind, in_order
from logd.wire.text import encode, json_objects, json_parts

TEXT, NDJSON, EVENTS = "text/plain; charset=utf-8", "application/x-ndjson", "text/event-stream"
PIECE_BYTES = 64 * 1024
STEP_S = 0.02
KEPT_BYTES = 32 << 20
_LARGE_BYTES = 32 * 1024  # a message of this size or more is put out in parts
_WALK_BYTES = 256 * 1024  # about what a walk holds, apart from large bodies and messages


class ReadPosition(NamedTuple):
    """The next byte of output: byte `skip` of what the message `offset` becomes."""

    offset: int
    skip: int = 0


class RenderedPiece(NamedTuple):
    """Some output, the number of messages that end in it, and where the next piece starts."""

    out: bytes
    found: int
    place: ReadPosition


class Shape(NamedTuple):
    """How messages are chosen and shown."""

    topic: str
    form: str
    pattern: Any = None


class Walk:
    """Over the batches of one reply, for at most `limit` messages."""

    def __init__(
        self, planned: Planned, reading: ReadState, shape: Shape, place: ReadPosition, limit: int,
        verified: int, gaps: list[Gap | Rewind],
    ) -> None:  # fmt: skip
        """Bodies before the offset `verified` were compared with their checksums already; `gaps`
        is where `reading` puts those that it meets."""
        self.is_done = False
        self.is_cancelled = False  # set by another thread
        self.place, self.verified = place, verified
        self.held_bytes = _WALK_BYTES
        self._planned, self._reading, self._shape = planned, reading, shape
        self._limit, self._gaps = limit, gaps
        self._end = planned.offset + planned.messages
        self._pieces = self._walk()

    def step(self) -> RenderedPiece:
        """About one piece; `is_done` once there are no more."""
        out: list[bytes] = []
        size = found = 0
        ends_s = time.monotonic() + STEP_S
        while size < PIECE_BYTES and time.monotonic() < ends_s and not self.is_cancelled:
            piece = next(self._pieces, None)
            if piece is None:
                self.is_done = True
                break
            out.append(piece.out)
            size, found = size + len(piece.out), found + piece.found
            self.place = piece.place
            self._limit -= piece.found
            if self._limit <= 0 or self.place.offset >= self._end:
                self.is_done = True
                break
        if self.is_done:
            self.close()
        return RenderedPiece(out[0] if len(out) == 1 else b"".join(out), found, self.place)

    def close(self) -> None:
        """Let go of what it holds: it and its generator refer to each other."""
        self._pieces.close()

    def _walk(self) -> Generator[RenderedPiece, None, None]:
        planned, first = self._planned, self.place.offset
        batches = scan(
            planned.read, 0, planned.size, window_bytes=WINDOW_BYTES, max_body_bytes=WINDOW_BYTES
        )
        checked = in_order(batches, planned.offset, self._end)
        for found, start, stop in self._reading.wanted(planned.offset, checked):
            if self._gaps:
                yield RenderedPiece(self._gap_events(), 0, ReadPosition(start))
            body = self._open(found)
            skip = self.place.skip if start == first else 0
            if self._shape.pattern is None:
                stop = min(stop, start + self._limit)
            if self._is_text_of(found):
                yield from _text(body, start, stop, skip)
            else:
                yield from _shown(self, body, start, stop, skip)
        if self._gaps:
            yield RenderedPiece(self._gap_events(), 0, ReadPosition(self._end))

    def _gap_events(self) -> bytes:
        gaps = [encode(str(gap)).encode() for gap in self._gaps]
        self._gaps.clear()
        if self._shape.form != EVENTS:
            return b""
        return b"".join([b"event: gap\ndata: %s\n\n" % gap for gap in gaps])

    def _is_text_of(self, found: ScannedBatch) -> bool:
        shape = self._shape
        is_lines = found.header.enc.partition("+")[0] == LINES
        return shape.form == TEXT and shape.pattern is None and is_lines

    def _open(self, found: ScannedBatch) -> BatchBody:
        body, header = BatchBody.of(found, self._planned.read), found.header
        if not found.body and header.next > self.verified:
            verify(body)
        self.verified = max(self.verified, header.next)
        # A sized body is inflated twice at a time, and a message may be as large as the body.
        self.held_bytes = _WALK_BYTES + 2 * max(inflated_bytes(body), header.size)
        return body

    def shown(self, time_ms: int, chosen: list[tuple[int, bytes]]) -> bytes:
        shape = self._shape
        if shape.form == TEXT:
            return b"".join([message + b"\n" for _, message in chosen])
        objects = json_objects(shape.topic, time_ms, chosen)
        if shape.form == NDJSON:
            return "".join([f"{one}\n" for one in objects]).encode()
        events = zip(chosen, objects, strict=True)
        return "".join([f"id: {offset}\ndata: {one}\n\n" for (offset, _), one in events]).encode()

    def chosen(self, offset: int, some: list[bytes]) -> list[tuple[int, bytes]]:
        """Those that match, and no more than are wanted."""
        numbered = enumerate(some, offset)
        if self._shape.pattern is None:
            return list(numbered)
        search = self._shape.pattern.search
        return [one for one in numbered if search(one[1])][: self._limit]

    def parts(self, time_ms: int, offset: int, message: bytes) -> Iterator[bytes]:
        """The same as `shown` of a large message, in bounded parts."""
        shape = self._shape
        if shape.form == TEXT:
            for at in range(0, len(message), _LARGE_BYTES):
                yield message[at : at + _LARGE_BYTES]
            yield b"\n"
            return
        if shape.form == EVENTS:
            yield b"id: %d\ndata: " % offset
        for part in json_parts(shape.topic, time_ms, offset, message):
            yield part.encode()
        yield b"\n" if shape.form == NDJSON else b"\n\n"


def _text(body: BatchBody, start: int, stop: int, skip: int) -> Iterator[RenderedPiece]:
    """Lines as they are stored: they are neither split nor put together."""
    offset, begun, left = start, 0, skip
    for window in text(body, start - body.header.offset, stop - start):
        ended = window.count(b"\n")
        offset += ended
        begun = len(window) - window.rfind(b"\n") - 1 if ended else begun + len(window)
        if left >= len(window):
            left -= len(window)
            continue
        yield RenderedPiece(window[left:] if left else window, ended, ReadPosition(offset, begun))
        left = 0


def _shown(
    walk: Walk, body: BatchBody, start: int, stop: int, skip: int
) -> Iterator[RenderedPiece]:
    offset, time_ms = start, body.header.time_ms
    for some in messages(body, start - body.header.offset, stop - start):
        chosen = walk.chosen(offset, some)
        if len(some) == 1 and chosen and len(some[0]) >= _LARGE_BYTES:
            yield from _large(walk, time_ms, offset, some[0], skip)
        else:
            out = walk.shown(time_ms, chosen)
            yield RenderedPiece(out, len(chosen), ReadPosition(offset + len(some)))
        offset, skip = offset + len(some), 0


def _large(
    walk: Walk, time_ms: int, offset: int, message: bytes, skip: int
) -> Iterator[RenderedPiece]:
    done = 0
    for part in walk.parts(time_ms, offset, message):
        done += len(part)
        if done > skip:
            yield RenderedPiece(part[-(done - skip) :], 0, ReadPosition(offset, done))
            skip = done
    yield RenderedPiece(b"", 1, ReadPosition(offset + 1))


class WalkCache:
    """Walks between two steps, up to a total of KEPT_BYTES; those stepped longest ago are dropped.

    A client that takes its output steps its walk again at once. One that has stopped reading costs
    a place and the bytes on their way to it.
    """

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._walks: dict[object, Walk] = {}
        self._limit_bytes, self._bytes = limit_bytes, 0

    def keep(self, owner: object, walk: Walk) -> None:
        self._walks[owner] = walk
        self._bytes += walk.held_bytes
        while self._bytes > self._limit_bytes and len(self._walks) > 1:
            self.drop(next(iter(self._walks)))

    def take(self, owner: object) -> Walk | None:
        """The walk that was kept for `owner`, if it was not dropped."""
        walk = self._walks.pop(owner, None)
        if walk is not None:
            self._bytes -= walk.held_bytes
        return walk

    def drop(self, owner: object) -> None:
        walk = self.take(owner)
        if walk is not None:
            walk.close()
