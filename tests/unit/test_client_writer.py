"""The writer on a client in memory: how it cuts, when it sends, how it fails and ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import repeat
from typing import ClassVar, SupportsIndex

import pytest

from logd import writer as writer_module
from logd.addresses import ConnectionLost
from logd.batch import body_sum, split_body
from logd.client import Client
from logd.commands import Pushed
from logd.errors import LogdError, NoSpace, TooLarge
from logd.requests import Push
from logd.writer import Writer


class Memory(Client):
    """Takes pushes like a daemon; `refuse` maps the number of a push to the error it gets."""

    def __init__(self, refuse: dict[int, Exception] | None = None) -> None:
        self.pushes: list[Push] = []
        self.most_in_flight = 0
        self.sent = threading.Event()
        self.pinged = threading.Event()
        self.collected = threading.Event()
        self.next_offset = 0
        self.answered = 0
        self.closed = False
        self._refuse = refuse or {}

    def send_push(self, push: Push) -> None:
        self.pushes.append(push)
        self.most_in_flight = max(self.most_in_flight, len(self.pushes) - self.answered)
        self.sent.set()

    def receive_pushed(self) -> Pushed:
        push = self.pushes[self.answered]
        self.answered += 1
        if self.answered - 1 in self._refuse:
            raise self._refuse[self.answered - 1]
        count = len(split_body(bytes(push.body), push.enc))
        self.next_offset += count
        self.collected.set()
        return Pushed(self.next_offset - count, count)

    def readable(self) -> bool:
        return True

    def ping(self) -> None:
        self.pinged.set()

    def close(self) -> None:
        self.closed = True

    def wait_for(self, messages: int) -> None:
        """Until so many have been answered, and the replies taken."""
        while self.next_offset < messages:
            self.collected.clear()
            if self.next_offset < messages:
                assert self.collected.wait(10)

    @property
    def batches(self) -> list[list[bytes]]:
        return [split_body(bytes(push.body), push.enc) for push in self.pushes]


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads change places as often as they can: races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


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
@pytest.mark.parametrize("many", [False, True])
def test_a_batch_has_what_fits_and_a_larger_message_is_alone(
    sizes: list[int], batches: list[list[int]], many: bool
) -> None:
    client = Memory()
    with Writer(client, "app", batch_bytes=10, linger_s=None) as writer:
        messages = [b"x" * size for size in sizes]
        if many:
            writer.write_many(messages)
        else:
            for message in messages:
                writer.write(message)
    assert [[len(message) for message in batch] for batch in client.batches] == batches


def test_any_bytes_come_through_in_order_and_with_their_sum() -> None:
    client = Memory()
    messages = [b"%d" % i + b"\n\r\0\xff" * (i % 3) for i in range(5_000)]
    with Writer(client, "app", batch_bytes=1000, linger_s=None) as writer:
        writer.write_many(messages[:2_500])
        writer.write_many(iter(messages[2_500:]))
    assert [message for batch in client.batches for message in batch] == messages
    assert all(push.sum == body_sum(push.body) for push in client.pushes)
    assert {push.enc for push in client.pushes} == {"sized"}
    assert (writer.acknowledged, writer.first_offset, writer.next_offset) == (5_000, 0, 5_000)


def test_compressed() -> None:
    client = Memory()
    with Writer(client, "app", compress=True, linger_s=None) as writer:
        writer.write_many([b"the same again"] * 1000)
    assert client.batches == [[b"the same again"] * 1000]
    assert client.pushes[0].enc == "lines+zstd"
    assert len(client.pushes[0].body) < 200


def test_so_many_batches_go_out_before_a_reply_is_taken() -> None:
    client = Memory()
    with Writer(client, "app", batch_bytes=1, linger_s=None, max_in_flight=4) as writer:
        for _ in range(3):
            writer.write(b"message")
        assert (len(client.pushes), client.answered) == (3, 0)
        for _ in range(20):
            writer.write(b"message")
        assert (client.most_in_flight, writer.acknowledged) == (4, 20)
    assert writer.acknowledged == 23


def test_flush_returns_when_all_is_acknowledged_and_can_be_repeated() -> None:
    client = Memory()
    with Writer(client, "app", linger_s=None) as writer:
        writer.flush()
        writer.write(b"one")
        assert client.pushes == []
        writer.flush()
        assert (writer.acknowledged, writer.next_offset) == (1, 1)
        writer.flush()
    assert client.batches == [[b"one"]]


def test_a_message_that_waits_is_sent_and_its_reply_taken_without_a_call() -> None:
    client = Memory()
    with Writer(client, "app", linger_s=0.001) as writer:
        for n in range(3):
            writer.write(b"%d" % n)
            client.wait_for(n + 1)
    assert client.batches == [[b"0"], [b"1"], [b"2"]]


def test_a_quiet_writer_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "KEEP_ALIVE_S", 0.001)
    client = Memory()
    with Writer(client, "app", linger_s=0.001) as writer:
        writer.write(b"x")
        assert client.pinged.wait(10)


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("linger_s", [None, 0.0001])
def test_threads_lose_and_double_nothing(linger_s: float | None) -> None:
    client = Memory()

    def work(name: int) -> None:
        for n in range(3_000):
            writer.write(b"%d %d" % (name, n) + b"." * (n % 7 * 30))
            if n % 1000 == 0:
                writer.flush()

    with Writer(client, "app", batch_bytes=500, linger_s=linger_s) as writer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    arrived: dict[bytes, list[int]] = {}
    for batch in client.batches:
        for message in batch:
            name, n = message.rstrip(b".").split(b" ")
            arrived.setdefault(name, []).append(int(n))
    assert arrived == {b"%d" % name: list(range(3_000)) for name in range(4)}
    assert max(len(push.body) for push in client.pushes) <= 2 * 500
    assert writer.acknowledged == 12_000


@pytest.mark.usefixtures("many_switches")
def test_whatever_threads_leave_behind_is_sent_without_a_flush() -> None:
    """A write that races with an emptied buffer must not be forgotten by the linger."""
    client = Memory()
    with Writer(client, "app", batch_bytes=100, linger_s=0.0001) as writer:
        for round_ in range(1, 100):
            threads = [
                threading.Thread(target=writer.write_many, args=([b"x" * 20] * 7,))
                for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            client.wait_for(round_ * 21)


def test_a_write_that_still_saw_the_old_limit_is_not_forgotten() -> None:
    class Racing(list[bytes]):
        """Another thread appends just when the buffer was emptied, and finds nothing to do."""

        late: ClassVar[list[bytes]] = [b"late"]

        def __delitem__(self, which: SupportsIndex | slice) -> None:
            super().__delitem__(which)
            self.extend(self.late)
            self.late.clear()

    client = Memory()
    with Writer(client, "app", linger_s=0.001) as writer:
        writer._buffer = Racing()
        writer._append = writer._buffer.append
        writer.write(b"early")
        writer.flush()
        client.wait_for(2)
    assert [message for batch in client.batches for message in batch] == [b"early", b"late"]


def test_a_refusal_is_raised_by_every_later_call_and_the_rest_is_collected() -> None:
    refusal = NoSpace("the disk is full")
    client = Memory(refuse={1: refusal})
    writer = Writer(client, "app", batch_bytes=1, linger_s=None)
    for _ in range(5):
        writer.write(b"message")
    for call in (writer.flush, writer.flush, lambda: writer.write(b"more"), writer.close):
        with pytest.raises(NoSpace) as caught:
            call()
        assert caught.value is refusal
    assert (client.answered, writer.acknowledged) == (5, 4)
    writer.close()


def test_a_refusal_met_by_the_linger_is_raised_by_the_next_write() -> None:
    client = Memory(refuse={0: TooLarge("at most 3 bytes")})
    writer = Writer(client, "app", linger_s=0.001)
    writer.write(b"message")
    assert client.sent.wait(10)
    with pytest.raises(TooLarge):
        writer.write_many(repeat(b""))  # until the thread has taken the reply
    with pytest.raises(TooLarge):
        writer.close()


def test_what_the_daemon_said_explains_more_than_that_it_hung_up() -> None:
    class HungUp(Memory):
        def send_push(self, push: Push) -> None:
            super().send_push(push)
            if len(self.pushes) == 3:
                raise ConnectionLost("broken pipe")

    client = HungUp(refuse={1: NoSpace("full"), 2: ConnectionLost("closed")})
    writer = Writer(client, "app", batch_bytes=1, linger_s=None)
    writer.write(b"one")
    writer.write(b"two")
    with pytest.raises(NoSpace):
        writer.write(b"three")
    assert writer.acknowledged == 1
    with pytest.raises(NoSpace):
        writer.close()


def test_an_acknowledgement_that_does_not_add_up() -> None:
    class Miscounting(Memory):
        def receive_pushed(self) -> Pushed:
            return super().receive_pushed()._replace(messages=7)

    writer = Writer(Miscounting(), "app", linger_s=None)
    writer.write(b"one")
    with pytest.raises(LogdError, match="1 messages were sent and 7 acknowledged"):
        writer.close()


def test_an_interrupt_is_not_forgotten() -> None:
    class Interrupted(Memory):
        def send_push(self, push: Push) -> None:
            super().send_push(push)
            raise KeyboardInterrupt

    writer = Writer(Interrupted(refuse={0: ConnectionLost("closed")}), "app", linger_s=None)
    writer.write(b"one")
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    with pytest.raises(ConnectionLost, match="interrupted"):
        writer.close()


def write_and_raise(client: Client) -> None:
    with Writer(client, "app", linger_s=None) as writer:
        writer.write(b"one")
        raise KeyError("mine")


def test_leaving_a_with_block_by_an_error_flushes_and_keeps_that_error() -> None:
    client = Memory()
    with pytest.raises(KeyError):
        write_and_raise(client)
    assert client.batches == [[b"one"]]


def test_two_errors_at_once_are_both_told() -> None:
    client = Memory(refuse={0: NoSpace("full")})
    with pytest.raises(KeyError) as caught:
        write_and_raise(client)
    assert "full" in caught.value.__notes__[0]


@pytest.mark.parametrize("message", ["text", bytearray(b"x"), None, 5])
def test_only_bytes(message: object) -> None:
    client = Memory()
    with Writer(client, "app", linger_s=None) as writer:
        with pytest.raises(TypeError):
            writer.write(message)  # type: ignore[arg-type]
        writer.write(b"good")
        with pytest.raises(TypeError):
            writer.write_many([b"also good", message])  # type: ignore[list-item]
    assert client.batches == [[b"good", b"also good"]]


def test_closed_is_closed() -> None:
    client = Memory()
    writer = Writer(client, "app")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"x")
    with pytest.raises(ValueError, match="closed"):
        writer.flush()
    assert not client.closed  # it was given, so it stays the giver's
