"""What the tests put into topics, and how they get it out again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from logd import Client, Reader
from logd.batch import ENCODINGS, SIZED, compress
from logd.wire.commands import batch_of, seal

EVERY_BYTE = bytes(range(256))
ODD = [
    b"",
    b"\n",
    b"\n\n",
    b"\0",
    b"\r\n",
    b"BATCH 0 1 2\r\n",
    EVERY_BYTE,
    b"\xff\xfe",
    b"x" * 70_000,
]


def payloads(seed: int, count: int) -> list[bytes]:
    """Odd ones, and others of any bytes and many sizes."""
    rng = random.Random(seed)
    return [
        rng.choice(ODD) if rng.random() < 0.2 else rng.randbytes(rng.choice((1, 10, 100, 1000)))
        for _ in range(count)
    ]


def push_every_way(address: str, topic: str, messages: Sequence[bytes]) -> None:
    """Batches of one to seven messages, in every encoding that can hold them, by turns."""
    rng = random.Random(len(messages))
    with Client(address) as client:
        at = turn = 0
        while at < len(messages):
            batch = messages[at : at + rng.randint(1, 7)]
            client.push_batch(encoded(topic, batch, ENCODINGS[turn % len(ENCODINGS)]))
            at, turn = at + len(batch), turn + 1


def encoded(topic: str, messages: Sequence[bytes], enc: str) -> Any:
    """As `enc`, unless a line end in a message forbids that."""
    push = batch_of(topic, messages)
    body, plain = push.body, push.enc
    if enc.startswith(SIZED) and plain != SIZED:
        sizes = b" ".join(b"%d" % len(message) for message in messages)
        body, plain = b"%s\n%s" % (sizes, b"".join(messages)), SIZED
    if enc.endswith("+zstd"):
        body, plain = compress(body, plain)
    return seal(topic, bytes(body), plain)


def push(address: str, topic: str, *batches: Sequence[bytes]) -> None:
    with Client(address) as client:
        for batch in batches:
            client.push(topic, batch)


def numbered(start: int, stop: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, stop)]


def stored(address: str, topic: str) -> list[bytes]:
    """All of a topic, read with logd's own client."""
    with Reader(address, topic) as reader:
        return [message.value for message in reader]


def times_ms(address: str, topic: str) -> Iterator[int]:
    with Reader(address, topic) as reader:
        yield from (message.time_ms for message in reader)


def logd(reader: Any, address: str, topic: str, **options: object) -> Any:
    """`spark.read` or `spark.readStream` of a topic."""
    return reader.format("logd").options(host=address, subscribe=topic, **options)


def rows(frame: Any) -> list[tuple[int, bytes]]:
    """Offsets and values, in the order of offsets."""
    return sorted((row.offset, bytes(row.value)) for row in frame.collect())


def values(frame: Any) -> list[bytes]:
    return [value for _, value in rows(frame)]
