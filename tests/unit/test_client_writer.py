"""The writer on a small daemon: how it cuts, when it sends, how it fails and ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import ClassVar, SupportsIndex

import pytest

from logd.batch import body_sum
from logd.client.writer import Writer
from logd.errors import BadRequest, BadTopic, TopicLimit
from logd.wire.addresses import ConnectionLost
from logd.wire.requests import Push
from tests.support.listener import nobody
from tests.unit.fake_daemon import HANG_UP, FakeDaemon


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as started:
        yield started


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads change places as often as they can: races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# -- cutting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([1], [[1]]),
        ([4, 4], [[4, 4]]),
        ([4, 5], [[4], [5]]),
        ([9], [[9]]),
        ([10], [[10]]),
        ([50], [[50]]),
        ([1, 50, 1], [[1], [50], [1]]),
        ([50, 50], [[50], [50]]),
        ([0] * 12, [[0] * 10, [0] * 2]),
        ([3, 3, 3, 3, 3], [[3, 3], [3, 3], [3]]),
    ],
)
@pytest.mark.parametrize("how", ["write", "write_many", "submit"])
def test_a_batch_has_what_fits_and_a_larger_message_is_alone(
    daemon: FakeDaemon, sizes: list[int], batches: list[list[int]], how: str
) -> None:
    with Writer(daemon.address, "app", batch_bytes=10, linger_s=None) as writer:
        messages = [b"x" * size for size in sizes]
        if how == "write_many":
            writer.write_many(messages)
        else:
            for message in messages:
                getattr(writer, how)(message)
    assert [[len(message) for message in batch] for batch in daemon.batches] == batches


def test_any_bytes_come_through_in_order_and_with_their_sum(daemon: FakeDaemon) -> None:
    messages = [b"%d" % i + b"\n\r\0\xff" * (i % 3) for i in range(5_000)]
    with Writer(daemon.address, "app", batch_bytes=1000, linger_s=None) as writer:
        writer.write_many(messages[:2_500])
        writer.write_many(iter(messages[2_500:]))
    assert daemon.messages == messages
    assert all(push.sum == body_sum(push.body) for push in daemon.pushes)
    assert {push.enc for push in daemon.pushes} == {"sized"}
    assert (writer.acknowledged, writer.first_offset, writer.next_offset) == (5_000, 0, 5_000)


def test_compressed(daemon: FakeDaemon) -> None:
    with Writer(daemon.address, "app", compress=True, linger_s=None) as writer:
        writer.write_many([b"the same again"] * 1000)
    assert daemon.batches == [[b"the same again"] * 1000]
    assert daemon.pushes[0].enc == "lines+zstd"
    assert len(daemon.pushes[0].body) < 200


def test_a_push_is_one_batch_behind_all_that_was_written(daemon: FakeDaemon) -> None:
    with Writer(daemon.address, "app", batch_bytes=10, linger_s=None) as writer:
        writer.write(b"before")
        writer.push([b"a message", b"that would be", b"three batches"])
        writer.write(b"after")
        with pytest.raises(BadRequest):
            writer.push([])
    assert daemon.batches == [
        [b"before"],
        [b"a message", b"that would be", b"three batches"],
        [b"after"],
    ]


# -- sending ------------------------------------------------------------------------------------


def test_flush_returns_when_all_is_acknowledged_and_can_be_repeated(daemon: FakeDaemon) -> None:
    with Writer(daemon.address, "app", linger_s=None) as writer:
        writer.flush()
        writer.write(b"one")
        assert daemon.pushes == []
        writer.flush()
        assert (writer.acknowledged, writer.next_offset) == (1, 1)
        writer.flush()
    assert daemon.batches == [[b"one"]]


def test_a_flush_ends_though_others_go_on_writing(daemon: FakeDaemon) -> None:
    """For each batch that is stored another waits already: there is never nothing left to send."""
    stop = threading.Event()

    def babble(number: int, push: Push) -> None:
        if not stop.is_set():
            writer.write_many([b"more"] * 100)

    daemon.script = babble
    with Writer(daemon.address, "app", batch_bytes=500, linger_s=None) as writer:
        try:
            for n in range(20):
                writer.write(b"%d" % n)
                writer.flush(20)
            assert daemon.messages.count(b"more") >= 100
        finally:
            stop.set()


def test_a_message_that_waits_is_sent_and_its_reply_taken_without_a_call(
    daemon: FakeDaemon,
) -> None:
    with Writer(daemon.address, "app", linger_s=0.001) as writer:
        for n in range(3):
            writer.write(b"%d" % n)
            daemon.wait_for(lambda wanted=n + 1: daemon.next == wanted)  # type: ignore[misc]
    assert daemon.batches == [[b"0"], [b"1"], [b"2"]]


def test_lingering_starts_though_the_thread_was_connecting(daemon: FakeDaemon) -> None:
    """What is written while the thread dials must not wait for its next round."""
    with Writer(daemon.address, "app", linger_s=0.001, connect="later") as writer:
        for n in range(20):
            writer.write(b"%d" % n)
            daemon.wait_for(lambda wanted=n + 1: daemon.next == wanted)  # type: ignore[misc]
            daemon.cut()
    assert daemon.messages == [b"%d" % n for n in range(20)]


# -- threads ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("linger_s", [None, 0.0001])
def test_threads_lose_and_double_nothing(daemon: FakeDaemon, linger_s: float | None) -> None:
    def work(name: int) -> None:
        for n in range(3_000):
            writer.write(b"%d %d" % (name, n) + b"." * (n % 7 * 30))
            if n % 1000 == 0:
                writer.flush()

    with Writer(daemon.address, "app", batch_bytes=500, linger_s=linger_s) as writer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    arrived: dict[bytes, list[int]] = {}
    for message in daemon.messages:
        name, n = message.rstrip(b".").split(b" ")
        arrived.setdefault(name, []).append(int(n))
    assert arrived == {b"%d" % name: list(range(3_000)) for name in range(4)}
    assert max(len(push.body) for push in daemon.pushes) <= 2 * 500
    assert writer.acknowledged == 12_000


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("size", [20, 3])  # pieces that are more than a batch, and less
def test_whatever_threads_leave_behind_is_sent_without_a_flush(
    daemon: FakeDaemon, size: int
) -> None:
    """A write that races with an emptied buffer must not be forgotten by the linger."""
    with Writer(daemon.address, "app", batch_bytes=100, linger_s=0.0001) as writer:
        for round_ in range(1, 100):
            threads = [
                threading.Thread(target=writer.write_many, args=([b"x" * size] * 7,))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            daemon.wait_for(lambda wanted=round_ * 21: daemon.next == wanted)  # type: ignore[misc]


class Racing(list[bytes]):
    """Another thread adds just when the buffer was emptied, and finds nothing to do."""

    late: ClassVar[list[bytes]] = []

    def __delitem__(self, which: SupportsIndex | slice) -> None:
        super().__delitem__(which)
        super().extend(self.late)
        self.late.clear()


def test_a_write_that_still_saw_the_old_limit_is_not_forgotten(daemon: FakeDaemon) -> None:
    with Writer(daemon.address, "app", linger_s=0.001) as writer:
        Racing.late.append(b"late")
        writer._buffer = Racing()
        writer.write(b"early")
        writer.flush()
        daemon.wait_for(lambda: daemon.next == 2)
    assert daemon.messages == [b"early", b"late"]


# -- failing ------------------------------------------------------------------------------------


def test_a_refusal_met_by_the_linger_is_raised_by_the_next_write(daemon: FakeDaemon) -> None:
    daemon.script = lambda number, push: TopicLimit("enough")
    writer = Writer(daemon.address, "app", linger_s=0.001)
    writer.write(b"message")
    with writer._lock:
        while writer._delivery.failure is None:
            writer._sender.wait(None)
    with pytest.raises(TopicLimit):
        writer.write(b"")
    with pytest.raises(TopicLimit):
        writer.close()


def test_leaving_a_with_block_by_an_error_flushes_and_keeps_that_error(daemon: FakeDaemon) -> None:
    with pytest.raises(KeyError), Writer(daemon.address, "app") as writer:  # noqa: PT012
        writer.write(b"one")
        raise KeyError("mine")
    assert daemon.batches == [[b"one"]]


@pytest.mark.parametrize("message", ["text", bytearray(b"x"), None, 5])
def test_only_bytes(daemon: FakeDaemon, message: object) -> None:
    with Writer(daemon.address, "app", linger_s=None) as writer:
        with pytest.raises(TypeError):
            writer.write(message)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            writer.submit(message)  # type: ignore[arg-type]
        writer.write(b"good")
        with pytest.raises(TypeError):
            writer.write_many([b"also good", message])  # type: ignore[list-item]
    assert daemon.batches == [[b"good", b"also good"]]


def test_closed_is_closed(daemon: FakeDaemon) -> None:
    writer = Writer(daemon.address, "app")
    writer.close()
    writer.close()
    for call in (
        lambda: writer.write(b"x"),
        lambda: writer.write_many([b"x"]),
        lambda: writer.submit(b"x"),
        lambda: writer.push([b"x"]),
        writer.flush,
    ):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert daemon.pushes == []


def test_what_cannot_be_is_refused_at_once(daemon: FakeDaemon) -> None:
    with pytest.raises(BadTopic):
        Writer(daemon.address, "no topic")
    with pytest.raises(ValueError, match="batch_bytes"):
        Writer(daemon.address, "app", batch_bytes=0)
    with pytest.raises(ValueError, match="max_in_flight"):
        Writer(daemon.address, "app", max_in_flight=513)
    with pytest.raises(BadRequest, match="producer"):
        Writer(daemon.address, "app", producer="two\r\nlines")
    with pytest.raises(ValueError, match="address"):
        Writer("not an address", "app", connect="later")
    with nobody() as address, pytest.raises(ConnectionLost, match="no logd answers"):
        Writer(address, "app")


def test_the_first_address_that_answers(daemon: FakeDaemon) -> None:
    daemon.script = lambda number, push: HANG_UP if number == 1 else None
    with nobody() as dead, Writer([dead, daemon.address], "app", batch_bytes=1) as writer:
        writer.write_many([b"%d" % n for n in range(5)])
    assert daemon.messages == [b"%d" % n for n in range(5)]
    assert daemon.connections == 2
