"""Renders stored batches as text, NDJSON or server-sent events, in bounded steps.

A `BatchRenderer` processes the batches of one READ. `step` runs on a thread and returns about
PIECE_BYTES of output, or what it has after STEP_S. No step holds a whole body or a whole reply.
Each piece ends at a `ReadPosition`, from which another renderer continues with the next byte. So a
renderer can be dropped at any time, as `RendererCache` does for clients that do not read.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import NamedTuple

from logd.batch import LINES, ScannedBatch, scan
from logd.web.async_service import Planned
from logd.web.read_parameters import EVENTS, NDJSON, TEXT, ReadParameters
from logd.wire.batch_decoder import WINDOW_BYTES, BatchBody, inflated_bytes, messages, text, verify
from logd.wire.read_state import Gap, ReadState, Rewind, in_order
from logd.wire.text import encode, json_objects, json_parts

PIECE_BYTES = 64 * 1024
STEP_S = 0.02
CACHE_BYTES = 32 << 20
_LARGE_BYTES = 32 * 1024  # a message of this size or more is rendered in parts
_RENDERER_BYTES = 256 * 1024  # that a renderer holds, besides large bodies and messages


class ReadPosition(NamedTuple):
    """The next byte of output: byte `skip` of the rendered message `offset`."""

    offset: int
    skip: int = 0


class RenderedPiece(NamedTuple):
    """Some output, the number of messages that end in it, and the position after it."""

    out: bytes
    messages: int
    end: ReadPosition


class BatchRenderer:
    """Renders at most `limit` messages of one reply."""

    def __init__(
        self, planned: Planned, reading: ReadState, options: ReadParameters,
        position: ReadPosition, limit: int, verified: int, gaps: list[Gap | Rewind],
    ) -> None:  # fmt: skip
        """The checksums of bodies before the offset `verified` were verified already; `reading`
        adds to `gaps`."""
        self.is_done = False
        self.is_cancelled = False  # set by another thread
        self.position, self.verified = position, verified
        self.held_bytes = _RENDERER_BYTES
        self._planned, self._reading, self._options = planned, reading, options
        self._limit, self._gaps = limit, gaps
        self._end = planned.offset + planned.messages
        self._pieces = self._render()

    def step(self) -> RenderedPiece:
        """About one piece; `is_done` once there are no more."""
        out: list[bytes] = []
        size = ended = 0
        ends_s = time.monotonic() + STEP_S
        while size < PIECE_BYTES and time.monotonic() < ends_s and not self.is_cancelled:
            piece = next(self._pieces, None)
            if piece is None:
                self.is_done = True
                break
            out.append(piece.out)
            size, ended = size + len(piece.out), ended + piece.messages
            self.position = piece.end
            self._limit -= piece.messages
            if self._limit <= 0 or self.position.offset >= self._end:
                self.is_done = True
                break
        if self.is_done:
            self.close()
        return RenderedPiece(out[0] if len(out) == 1 else b"".join(out), ended, self.position)

    def close(self) -> None:
        """Free its memory: it and its generator refer to each other."""
        self._pieces.close()

    def _render(self) -> Generator[RenderedPiece, None, None]:
        planned, first = self._planned, self.position.offset
        batches = scan(
            planned.read, 0, planned.size, window_bytes=WINDOW_BYTES, max_body_bytes=WINDOW_BYTES
        )
        checked = in_order(batches, planned.offset, self._end)
        for found, start, stop in self._reading.wanted(planned.offset, checked):
            if self._gaps:
                yield RenderedPiece(self._gap_events(), 0, ReadPosition(start))
            body = self._open(found)
            skip = self.position.skip if start == first else 0
            if self._options.pattern is None:
                stop = min(stop, start + self._limit)
            if self._is_copied(found):
                yield from _copy_lines(body, start, stop, skip)
            else:
                yield from self._render_body(body, start, stop, skip)
        if self._gaps:
            yield RenderedPiece(self._gap_events(), 0, ReadPosition(self._end))

    def _gap_events(self) -> bytes:
        gaps = [encode(str(gap)).encode() for gap in self._gaps]
        self._gaps.clear()
        if self._options.media_type != EVENTS:
            return b""
        return b"".join([b"event: gap\ndata: %s\n\n" % gap for gap in gaps])

    def _is_copied(self, found: ScannedBatch) -> bool:
        """Are the stored lines the output?"""
        options, enc = self._options, found.header.enc.partition("+")[0]
        return options.media_type == TEXT and options.pattern is None and enc == LINES

    def _open(self, found: ScannedBatch) -> BatchBody:
        body, header = BatchBody.of(found, self._planned.read), found.header
        if not found.body and header.next > self.verified:
            verify(body)
        self.verified = max(self.verified, header.next)
        # Two parts of a sized body are inflated at a time; a message may be as large as the body.
        self.held_bytes = _RENDERER_BYTES + 2 * max(inflated_bytes(body), header.size)
        return body

    def _render_body(
        self, body: BatchBody, start: int, stop: int, skip: int
    ) -> Iterator[RenderedPiece]:
        offset, time_ms = start, body.header.time_ms
        for some in messages(body, start - body.header.offset, stop - start):
            selected = self._select(offset, some)
            if len(some) == 1 and selected and len(some[0]) >= _LARGE_BYTES:
                yield from self._render_large(time_ms, offset, some[0], skip)
            else:
                out = self._render_messages(time_ms, selected)
                yield RenderedPiece(out, len(selected), ReadPosition(offset + len(some)))
            offset, skip = offset + len(some), 0

    def _select(self, offset: int, some: list[bytes]) -> list[tuple[int, bytes]]:
        """The messages that match, up to the limit."""
        numbered = enumerate(some, offset)
        if self._options.pattern is None:
            return list(numbered)
        search = self._options.pattern.search
        return [one for one in numbered if search(one[1])][: self._limit]

    def _render_messages(self, time_ms: int, selected: list[tuple[int, bytes]]) -> bytes:
        options = self._options
        if options.media_type == TEXT:
            return b"".join([message + b"\n" for _, message in selected])
        objects = json_objects(options.topic, time_ms, selected)
        if options.media_type == NDJSON:
            return "".join([f"{one}\n" for one in objects]).encode()
        events = zip(selected, objects, strict=True)
        return "".join([f"id: {offset}\ndata: {one}\n\n" for (offset, _), one in events]).encode()

    def _render_large(
        self, time_ms: int, offset: int, message: bytes, skip: int
    ) -> Iterator[RenderedPiece]:
        done = 0
        for part in self._large_parts(time_ms, offset, message):
            done += len(part)
            if done > skip:
                yield RenderedPiece(part[-(done - skip) :], 0, ReadPosition(offset, done))
                skip = done
        yield RenderedPiece(b"", 1, ReadPosition(offset + 1))

    def _large_parts(self, time_ms: int, offset: int, message: bytes) -> Iterator[bytes]:
        """The same output as `_render_messages`, in bounded parts."""
        options = self._options
        if options.media_type == TEXT:
            for at in range(0, len(message), _LARGE_BYTES):
                yield message[at : at + _LARGE_BYTES]
            yield b"\n"
            return
        if options.media_type == EVENTS:
            yield b"id: %d\ndata: " % offset
        for part in json_parts(options.topic, time_ms, offset, message):
            yield part.encode()
        yield b"\n" if options.media_type == NDJSON else b"\n\n"


def _copy_lines(body: BatchBody, start: int, stop: int, skip: int) -> Iterator[RenderedPiece]:
    """Lines as they are stored, without splitting and joining them."""
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


class RendererCache:
    """Renderers between two steps, up to `limit_bytes`; the least recently used are dropped.

    A client that reads uses its renderer again at once. A client that has stopped reading costs
    a position and the bytes that are being sent to it.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._renderers: dict[object, BatchRenderer] = {}
        self._limit_bytes, self._bytes = limit_bytes, 0

    def put(self, owner: object, renderer: BatchRenderer) -> None:
        self._renderers[owner] = renderer
        self._bytes += renderer.held_bytes
        while self._bytes > self._limit_bytes and len(self._renderers) > 1:
            self.drop(next(iter(self._renderers)))

    def take(self, owner: object) -> BatchRenderer | None:
        """The renderer of `owner`, unless it was dropped."""
        renderer = self._renderers.pop(owner, None)
        if renderer is not None:
            self._bytes -= renderer.held_bytes
        return renderer

    def drop(self, owner: object) -> None:
        renderer = self.take(owner)
        if renderer is not None:
            renderer.close()
