"""Coverage-guided: atheris throws at the pure parts what it has seen to reach new code.

    python -m tests.integration.fuzz.guided <target> -atheris_runs=10000

Each target takes bytes and asserts what always holds. Only `LogdError` and what a module itself
names may come out; a crash leaves its input in build/fuzz, to be given to the same command again.
"""

from __future__ import annotations

import sys
import zlib

import atheris

with atheris.instrument_imports(include=["logd"]):
    from logd import batch
    from logd.errors import LogdError
    from logd.net.syslog_frames import MAX_FRAME_BYTES, Frames
    from logd.web import elasticsearch, ingestion, loki, request_body
    from logd.wire import requests
    from logd.wire.replies import NotLogd, Replies

from tests.support.feeding import fed


def parser(data: bytes) -> None:
    """The requests do not depend on how the bytes were cut."""
    if not data:
        return
    cut, rest = data[0], data[1:]
    whole = fed([rest])
    assert fed([rest[:cut], rest[cut:]]) == whole
    size = cut % 7 + 1
    assert fed(rest[i : i + size] for i in range(0, len(rest), size)) == whole


def scanner(data: bytes) -> None:
    """What is found is within the bytes, joins, and splits into as many messages as it says."""
    position, window = 0, data[0] * 8 if data else 0
    try:
        for found in batch.scan(batch.reading(data), 0, len(data), window_bytes=window):
            assert found.position == position
            assert data[found.position :].startswith(b"BATCH ")
            position = found.end
            messages = batch.split_body(found.body, found.header.enc, 1 << 20)
            assert messages
    except LogdError:
        pass
    assert position <= len(data)


def bodies(data: bytes) -> None:
    """A body that is counted splits into as many messages, and these make the same body."""
    for enc in (batch.LINES, batch.SIZED):
        try:
            count = batch.count_messages(data, enc)
        except LogdError:
            continue
        messages = batch.split_body(data, enc)
        assert len(messages) == count
        assert batch.split_body(*batch.encode_body(messages)) == messages
    try:
        assert len(batch.inflate(data, 4096)) <= 4096
    except LogdError:
        pass


def replies(data: bytes) -> None:
    """A client's end: replies, errors, or `NotLogd`, however the bytes come."""
    taking, step = Replies(), data[0] % 50 + 1 if data else 1
    try:
        for at in range(1, len(data), step):
            piece = data[at : at + step]
            while piece:
                room = taking.room()
                assert len(room)
                here = min(len(room), len(piece))
                room[:here] = piece[:here]
                taking.received(here)
                piece = piece[here:]
                while taking.take() is not None:
                    pass
    except NotLogd:
        pass


def frames(data: bytes) -> None:
    """Syslog frames do not depend on how the bytes were cut."""
    cut = data[0] if data else 0
    whole, halves = Frames(), Frames()
    once = whole.feed(data[1:]) + whole.end()
    assert halves.feed(data[1 : cut + 1]) + halves.feed(data[cut + 1 :]) + halves.end() == once
    assert all(len(frame) <= MAX_FRAME_BYTES for frame in once)


def http(data: bytes) -> None:
    """Bodies of the routes that store: messages or a refusal."""
    for take in (
        lambda: ingestion.parse_messages(data, "application/json", 4096),
        lambda: ingestion.parse_messages(data, "application/x-ndjson", 4096),
        lambda: loki.parse_streams(data, 4096),
        lambda: elasticsearch.BulkRequest(data, "web", 4096),
        lambda: request_body._inflate_step(zlib.decompressobj(31), data, 4096),
        lambda: requests.where(data),
    ):
        try:
            take()
        except LogdError:
            pass


TARGETS = {
    "parser": parser, "scanner": scanner, "bodies": bodies, "replies": replies, "frames": frames,
    "http": http,
}  # fmt: skip


def main() -> None:
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
