"""The body of an HTTP response is made in steps; it is the same wherever a walk is dropped."""

from __future__ import annotations

import json
import re
from base64 import b64decode

import pytest

from logd.batch import LINES, SIZED, body_sum, compress, encode_body, encode_header, reading, scan
from logd.web import batch_rendering
from logd.web.async_service import Planned
from logd.web.batch_rendering import (
    PIECE_BYTES,
    BatchRenderer,
    ReadPosition,
    RendererCache,
)
from logd.web.read_parameters import EVENTS, NDJSON, TEXT, ReadParameters
from logd.wire.read_state import Gap, ReadState, Rewind

VALUES = [
    b"first", b"", b"\xff\xfe", "\u20ac".encode() * 40_000, b"with\nan end", b"\x01" * 60_000,
    b"\xff" * 50_000, b"x" * 200_000, *[b"message %d" % n for n in range(3000)], b"last",
]  # fmt: skip


def batches(values: list[bytes], per_batch: int, compressed: bool) -> bytes:
    data = b""
    for at in range(0, len(values), per_batch):
        some = values[at : at + per_batch]
        body, enc = encode_body(some)
        if compressed:
            body, enc = compress(body, enc)
        head = encode_header(at, len(some), len(body), 1_700_000_000_000, enc, body_sum(body))
        data += head + body
    return data


class Client:
    """Reads all of `data` by steps, and may drop its walk after any of them."""

    def __init__(self, data: bytes, count: int, options: ReadParameters, limit: int) -> None:
        self.data, self.count, self.options, self.limit = data, count, options, limit
        self.pieces: list[bytes] = []
        self.steps = 0

    def read(self, drops: list[int]) -> bytes:
        """Of each three steps, the walk is dropped after these."""
        left, place, verified = self.limit, ReadPosition(0), 0
        walk = self.walk(place, left, verified)
        while True:
            self.steps += 1
            piece = walk.step()
            self.pieces.append(piece.out)
            left, place, verified = left - piece.messages, piece.end, walk.verified
            if walk.is_done:
                return b"".join(self.pieces)
            if self.steps % 3 in drops:
                walk.close()
                walk = self.walk(place, left, verified)

    def walk(self, place: ReadPosition, left: int, verified: int) -> BatchRenderer:
        """Planned as the daemon does it: from the batch that holds the place."""
        batches = scan(reading(self.data), 0, len(self.data))
        at = max(one.position for one in batches if one.header.offset <= place.offset)
        view = memoryview(self.data)[at:]
        planned = Planned(place.offset, self.count - place.offset, len(view), reading(view))
        gaps: list[Gap | Rewind] = []
        reader = ReadState("app", on_gap=gaps.append)
        return BatchRenderer(planned, reader, self.options, place, left, verified, gaps)


def expected(options: ReadParameters, limit: int) -> bytes:
    chosen = [
        (offset, value)
        for offset, value in enumerate(VALUES)
        if options.pattern is None or options.pattern.search(value)
    ][:limit]
    if options.media_type == TEXT:
        return b"".join(value + b"\n" for _, value in chosen)
    objects = []
    for offset, value in chosen:
        one = {"topic": "app", "offset": offset, "time": "2023-11-14T22:13:20.000Z"}
        try:
            one["message"] = value.decode()
        except UnicodeDecodeError:
            one["message_base64"] = value
        objects.append(one)
    return repr(objects).encode()


def as_expected(out: bytes, options: ReadParameters) -> bytes:
    if options.media_type == TEXT:
        return out
    lines = out.decode().splitlines()
    if options.media_type == EVENTS:
        events = out.decode().split("\n\n")[:-1]
        lines = []
        for event in events:
            id_, data = event.split("\n")
            lines.append(data.removeprefix("data: "))
            assert id_ == f"id: {json.loads(lines[-1])['offset']}"
    objects = [json.loads(line) for line in lines]
    for one in objects:
        if "message_base64" in one:
            one["message_base64"] = b64decode(one["message_base64"])
    return repr(objects).encode()


@pytest.mark.parametrize("form", [TEXT, NDJSON, EVENTS])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("pattern", [None, re.compile(rb"[17x]$|\xff")])
@pytest.mark.parametrize("limit", [1 << 40, 5, 1000])
@pytest.mark.parametrize("per_batch", [5, len(VALUES)])
def test_the_same_output_wherever_a_walk_is_dropped(
    form: str, compressed: bool, pattern: re.Pattern[bytes] | None, limit: int, per_batch: int
) -> None:
    data = batches(VALUES, per_batch, compressed)
    options = ReadParameters("app", media_type=form, pattern=pattern)
    for drops in ([], [1, 2], [0, 1, 2]):
        client = Client(data, len(VALUES), options, limit)
        assert as_expected(client.read(drops), options) == expected(options, limit)
        assert max(map(len, client.pieces)) < 3 * PIECE_BYTES


def test_a_step_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(batches(VALUES, 500, False), len(VALUES), ReadParameters("app"), 1 << 40)
    monkeypatch.setattr("logd.web.batch_rendering.time.monotonic", iter(range(1 << 30)).__next__)
    monkeypatch.setattr(batch_rendering, "STEP_S", 2)
    client.read([])
    assert client.steps > 10


def test_walks_of_idle_clients_are_dropped() -> None:
    data = batches([b"x" * 300_000], 1, False)
    kept = RendererCache(limit_bytes=2 << 20)
    owners = [Client(data, 1, ReadParameters("app", media_type=NDJSON), 1) for _ in range(5)]
    for owner in owners:
        walk = owner.walk(ReadPosition(0), 1, 0)
        walk.step()
        kept.put(owner, walk)
    assert [kept.take(owner) is not None for owner in owners] == [False, False, False, True, True]


def test_the_largest_walk_is_kept_if_it_is_alone() -> None:
    """Else each of its steps would start anew."""
    data = batches([b"x" * 300_000], 1, False)
    kept, owner = RendererCache(limit_bytes=1000), object()
    walk = Client(data, 1, ReadParameters("app", media_type=NDJSON), 1).walk(ReadPosition(0), 1, 0)
    walk.step()
    kept.put(owner, walk)
    assert kept.take(owner) is walk


def test_the_encodings_of_the_values() -> None:
    assert encode_body([b"a"])[1] == LINES
    assert encode_body(VALUES)[1] == SIZED
