"""READs of a few messages that are answered directly: the same bytes as by the usual way, or
nothing at all."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from logd.errors import LogdError
from logd.net.replies import ReplyEncoder
from logd.service import BatchesReply
from logd.storage import single_read
from logd.topic import Topic
from tests.support.topic_loop import Loop, Pushing, batch_of, close, create, push

if not single_read.IS_AVAILABLE:
    pytest.skip("no compiler where this was installed", allow_module_level=True)

PARTITION_BYTES = 20_000


class Reading:
    """A topic with batches of many sizes in several partitions, and a client."""

    def __init__(self, directory: Path, fsync: str = "never") -> None:
        self.loop = Loop()
        self.topic: Topic = create(
            directory, self.loop, partition_bytes=PARTITION_BYTES, fsync=fsync
        )
        self.counters = {"reads": 0, "read_bytes": 0}
        self.reads = single_read.SingleReads("app", self.topic.readable, self.counters)
        self.here, self.there = socket.socketpair()
        self.there.setblocking(False)

    def fill(self, seed: int, batches: int = 60) -> None:
        rng = random.Random(seed)
        for _ in range(batches):
            size = rng.choice((0, 10, 100, 1000, 6000, 15_000))
            messages = [rng.randbytes(size // 2).hex().encode()] * rng.choice((1, 1, 2, 40))
            if sum(map(len, messages)) < PARTITION_BYTES:
                assert push(self.topic, self.loop, batch_of(messages)).is_stored

    def answer(self, offset: int, messages: int) -> bytes | None:
        rest = self.reads.answer(b"READ app %d %d\r\n" % (offset, messages), self.here.fileno())
        sent = b""
        while piece := self._receive():
            sent += piece
        assert rest is not None or not sent
        return None if rest is None else sent + rest

    def _receive(self) -> bytes:
        try:
            return self.there.recv(1 << 20)
        except BlockingIOError:
            return b""

    def expected(self, offset: int, messages: int) -> bytes | None:
        """By the usual way; None if that is an error."""
        try:
            plan = self.topic.readable.plan(offset, messages, 1 << 20)
            data = [part.file.read(part.position, part.size) for part in plan.slices]
        except LogdError:
            return None
        size = sum(map(len, data))
        return ReplyEncoder().batches(BatchesReply(plan.offset, plan.messages, size, data))


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    reading = Reading(tmp_path / "app")
    with reading.here, reading.there:
        yield reading
        close(reading.topic, reading.loop)


@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_are_those_of_the_usual_way(reading: Reading, seed: int) -> None:
    reading.fill(seed)
    readable, direct = reading.topic.readable, 0
    assert len(readable.partitions) > 3
    for offset in range(readable.first, readable.next):
        for messages in (1, 2, 50, 10**17):
            expected = reading.expected(offset, messages)  # which opens the partition
            answer = reading.answer(offset, messages)
            if answer is not None:
                assert answer == expected
                direct += 1
            elif messages == 1:
                assert expected is not None
                assert len(expected) > 10_000, "every small one is answered directly"
    assert reading.counters["reads"] == direct > readable.next


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"READ app",
        b"READ app \r\n",
        b"READ app 0\r\n",
        b"READ app 0 \r\n",
        b"READ app 0 0\r\n",
        b"READ app 0 1",
        b"READ app 0 1\r",
        b"READ app 0 1\r\n\n",
        b"READ app 0 1 \r\n",
        b"READ app 0 1 wait=1\r\n",
        b"READ app 0 1\r\nPING\r\n",
        b"READ app first 1\r\n",
        b"READ app -1 1\r\n",
        b"READ app +0 1\r\n",
        b"READ app 0 01\r\n",
        b"READ app 1000000000000000000000 1\r\n",
        b"READ app 0 10000000000000000000\r\n",
        b"read app 0 1\r\n",
        b"READ apps 0 1\r\n",
        b"TAIL app 1\r\n",
    ],
)
def test_anything_else_is_left_to_the_parser(reading: Reading, line: bytes) -> None:
    reading.fill(1, 3)
    assert reading.expected(0, 1) is not None
    assert reading.reads.answer(line, reading.here.fileno()) is None
    assert reading._receive() == b""
    assert reading.answer(0, 1) == reading.expected(0, 1)


def test_offsets_outside_the_topic_are_left_to_the_usual_way(reading: Reading) -> None:
    reading.fill(1)
    readable = reading.topic.readable
    assert len(readable.partitions) > 1
    assert reading.answer(readable.next, 1) is None
    assert reading.answer(10**18, 1) is None
    oldest = readable.partitions.peekitem(0)[1]
    assert reading.expected(0, 1) is not None
    assert reading.answer(0, 1) is not None
    readable.remove(oldest)
    assert reading.answer(0, 1) is None, "the partition has expired"


def test_nothing_is_shown_before_it_is_synced(tmp_path: Path) -> None:
    reading = Reading(tmp_path / "app", fsync="always")
    with reading.here, reading.there:
        reading.fill(1, 4)
        for _ in range(3):  # the next batches are in the same interval of the index
            assert push(reading.topic, reading.loop, batch_of([b"small"])).offset >= 0
            reading.loop.pass_time(1)
        before = reading.topic.readable.next
        for n in range(100):
            reading.topic.push(Pushing(batch_of([b"x" * 100 * (n % 5)])))
        for _ in range(3):
            reading.loop.step()  # written, and not synced
            for offset in range(before - 1, reading.topic.active.next + 1):
                for messages in (1, 2, 5, 10**6):
                    answer = reading.answer(offset, messages)
                    assert answer is None or answer == reading.expected(offset, messages)
                    assert answer is None or offset < reading.topic.readable.next
        reading.loop.run()
        reading.loop.pass_time(1)
        assert reading.topic.readable.next == before + 100
        assert reading.answer(before + 99, 1) == reading.expected(before + 99, 1)


def test_any_damaged_byte_is_noticed(reading: Reading) -> None:
    """In the file or in the index: the reply is right in its frame, or the usual way decides."""
    reading.fill(2, 12)
    partition = reading.topic.readable.partitions.peekitem(0)[1]
    whole = {offset: reading.expected(offset, 1) for offset in range(partition.next)}
    data = bytearray(partition.path.read_bytes())
    for position in range(0, len(data), 7):
        with partition.path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([data[position] ^ 0x11]))
        for offset in range(0, partition.next, 5):
            answer = reading.answer(offset, 1)
            if answer is not None and answer != whole[offset]:
                body_only = sum(a != b for a, b in zip(answer, whole[offset] or b"", strict=True))
                assert body_only == 1, "a reader checks the body"
        with partition.path.open("r+b") as file:
            file.seek(position)
            file.write(data[position : position + 1])
    index = partition.open_index
    assert index is not None
    entries = bytes(index.data)
    for position in range(len(entries)):
        damaged = bytearray(entries)
        damaged[position] ^= 0x11
        index.data = damaged
        for offset in range(0, partition.next, 5):
            answer = reading.answer(offset, 1)
            assert answer is None or answer == whole[offset]
    index.data = bytearray(entries)


def test_what_a_full_socket_does_not_accept_is_returned(reading: Reading) -> None:
    reading.fill(2, 12)
    reading.here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    expected = reading.expected(0, 1)
    assert expected is not None
    sent, rests = 0, list[bytes]()
    while not any(rests):
        rest = reading.reads.answer(b"READ app 0 1\r\n", reading.here.fileno())
        assert rest is not None
        rests.append(rest)
        sent += 1
    got = b""
    while piece := reading._receive():
        got += piece
    assert got + rests[-1] == expected * sent
