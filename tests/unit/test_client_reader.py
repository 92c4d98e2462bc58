"""The reader on a topic in memory: where it starts, what it cuts and refuses, how it ends."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logd.batch import GAP, body_sum, compress, encode_body, encode_header
from logd.client.client import Client
from logd.client.reader import Reader
from logd.errors import DamagedBatch, NotFound, OutOfRange, UnknownCommand
from logd.net.follow import HEARTBEAT_S
from logd.protocol import Budget, Parser
from logd.wire import commands
from logd.wire.commands import Batches, Command
from logd.wire.read_state import Batch, Gap, Message, ReadState, Rewind, check
from logd.wire.requests import At, Read, Tail, Where


def batch(offset: int, messages: list[bytes], time_ms: int = 1000, *, small: bool = False) -> bytes:
    body, enc = encode_body(messages)
    if small:
        body, enc = compress(body, enc)
    return encode_header(offset, len(messages), len(body), time_ms, enc, body_sum(body)) + body


def gap(offset: int, messages: int) -> bytes:
    return encode_header(offset, messages, 0, 1000, GAP, body_sum(b""))


class Log(Client):
    """A topic in memory: (first offset, count, bytes) of each batch, read as the protocol says.

    A reply has at most `per_reply` batches; `sent` has every READ or TAIL that was asked.
    """

    def __init__(self, batches: list[bytes], counts: list[int], first: int = 0, per_reply: int = 3):
        starts = [first + sum(counts[:i]) for i in range(len(counts))]
        self.stored = list(zip(starts, counts, batches, strict=True))
        self.first, self.next = first, first + sum(counts)
        self.per_reply = per_reply
        self.sent: list[Read | int] = []
        self.due: deque[Read | int] = deque()

    @property
    def in_flight(self) -> int:
        return len(self.due)

    def send(self, command: Command[Any]) -> None:
        (request,) = Parser(1 << 20, Budget(1 << 20)).feed(command.line)
        assert isinstance(request, Read | Tail)
        asked = request.messages if isinstance(request, Tail) else request
        self.sent.append(asked)
        self.due.append(asked)

    def receive(self) -> Any:
        asked = self.due.popleft()
        if isinstance(asked, int):
            start, messages = max(self.first, self.next - asked), asked
        else:
            start, messages = self._resolve(asked), asked.messages
        if not self.first <= start <= self.next:
            raise OutOfRange(f"first={self.first} next={self.next}")
        found = [
            (offset + count, data)
            for offset, count, data in self.stored
            if offset + count > start and offset < start + messages
        ][: self.per_reply]
        end = found[-1][0] if found else start
        return Batches(start, end - start, bytearray().join(data for _, data in found))

    def _resolve(self, read: Read) -> int:
        if isinstance(read.where, int):
            return read.where
        return self.next if read.where == "next" else self.first

    def close(self) -> None:
        pass


def numbered(counts: list[int], first: int = 0, per_reply: int = 3) -> Log:
    """Each message is its own offset."""
    starts = [first + sum(counts[:i]) for i in range(len(counts))]
    batches = [
        batch(start, [b"%d" % n for n in range(start, start + count)], 1000 + start)
        for start, count in zip(starts, counts, strict=True)
    ]
    return Log(batches, counts, first, per_reply)


def offsets(reader: Reader) -> list[int]:
    messages = list(reader)
    assert all(message.value == b"%d" % message.offset for message in messages)
    return [message.offset for message in messages]


@given(
    counts=st.lists(st.integers(1, 5), max_size=8),
    first=st.integers(0, 3),
    per_reply=st.integers(1, 4),
    start=st.integers(0, 12),
    limit=st.none() | st.integers(0, 12),
    until=st.none() | st.integers(0, 12),
    until_ms=st.none() | st.integers(1000, 1012),
    follow=st.booleans(),
)
def test_exactly_what_was_asked_for(
    counts: list[int],
    first: int,
    per_reply: int,
    start: int,
    limit: int | None,
    until: int | None,
    until_ms: int | None,
    follow: bool,
) -> None:
    log = numbered(counts, first, per_reply)
    start = min(max(start, log.first), log.next)
    newer = [at for at, _, _ in log.stored if until_ms is not None and 1000 + at >= until_ms]
    end = min([log.next, *newer, *([] if until is None else [until])])
    reader = Reader(
        log, "app", start=start, limit=limit, until=until, until_ms=until_ms,
        follow=follow and until_ms is not None,
    )  # fmt: skip
    assert offsets(reader) == list(range(start, end))[:limit]
    assert not log.due


@given(counts=st.lists(st.integers(1, 5), max_size=8), tail=st.integers(0, 12))
def test_the_last_so_many(counts: list[int], tail: int) -> None:
    log = numbered(counts, first=2)
    wanted = list(range(2, log.next))[-tail:] if tail else []
    assert offsets(Reader(log, "app", tail=tail)) == wanted


def test_messages_have_names_and_the_time_of_their_batch() -> None:
    reader = Reader(numbered([2, 1]), "app")
    assert list(reader) == [(0, 1000, b"0"), (1, 1000, b"1"), (2, 1002, b"2")]
    message = next(iter(Reader(numbered([1]), "app")))
    assert isinstance(message, Message)
    assert (message.offset, message.time_ms, message.value) == (0, 1000, b"0")


def test_batches_are_lists_already_cut() -> None:
    reader = Reader(numbered([3, 3, 3]), "app", start=1, limit=6)
    assert list(reader.batches()) == [
        Batch(1, 1000, [b"1", b"2"]),
        Batch(3, 1003, [b"3", b"4", b"5"]),
        Batch(6, 1006, [b"6"]),
    ]
    assert reader.next_offset == 9


def test_iterating_again_goes_on_where_it_stopped() -> None:
    reader = Reader(numbered([3, 3]), "app")
    for message in reader:
        if message.offset == 1:
            break
    assert [message.offset for message in reader] == [2, 3, 4, 5]


def test_an_abandoned_reader_leaves_nothing_due_on_a_client_it_was_given() -> None:
    log = numbered([1] * 9)
    next(iter(Reader(log, "app")))
    assert not log.due


def test_on_its_own_connection_it_asks_ahead_and_never_for_too_much() -> None:
    log = numbered([2] * 9)
    reader = Reader(log, "app", limit=9)
    reader._target = "its own"
    next(reader.batches())
    assert [(r.where, r.messages) for r in log.sent if isinstance(r, Read)] == [
        ("first", 9),
        (6, 3),
    ]
    assert sum(len(found.messages) for found in reader.batches()) == 7
    assert not log.due


def test_every_encoding() -> None:
    messages = [b"", b"two\nlines", b"\xff\0"]
    log = Log(
        [batch(0, messages), batch(3, messages, small=True), batch(6, [b"a"] * 9, small=True)],
        [3, 3, 9],
    )
    assert [message.value for message in Reader(log, "app")] == messages * 2 + [b"a"] * 9


def test_a_follower_waits_at_the_end_and_goes_on() -> None:
    log = numbered([2])
    reader = Reader(log, "app", start="next", follow=True, limit=3)
    waits = 0

    def arrive() -> Any:
        nonlocal waits
        waits += 1
        if waits == 3:  # nothing came during two waits
            log.stored.append((2, 3, batch(2, [b"2", b"3", b"4"])))
            log.next = 5
        return Log.receive(log)

    log.receive = arrive  # type: ignore[method-assign]
    assert offsets(reader) == [2, 3, 4]
    assert [(r.where, r.wait_ms) for r in log.sent if isinstance(r, Read)] == [
        ("next", 30_000),
        (2, 30_000),
        (2, 30_000),
    ]


def test_a_follower_waits_no_longer_than_up_to_its_time_and_then_asks_once_more() -> None:
    now_ms = 5_000
    reading = ReadState("app", follow=True, until_ms=40_000, now_ms=lambda: now_ms)
    waits_ms = []
    for now_ms in (5_000, 9_999, 39_000, 39_999, 40_000):  # noqa: B007
        assert not reading.is_done
        question = reading.question()
        assert isinstance(question, Read)
        waits_ms.append(question.wait_ms)
        reading.arrived(Batches(0, 0, bytearray()))
    assert waits_ms == [30_000, 30_000, 1_000, 1, 0]
    assert reading.is_done


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    per_reply=st.integers(1, 4),
    start=st.integers(0, 39),
    limit=st.none() | st.integers(1, 40),
    until=st.none() | st.integers(1, 40),
)
def test_a_stream_is_cut_to_what_was_asked_for(
    counts: list[int], per_reply: int, start: int, limit: int | None, until: int | None
) -> None:
    log = numbered(counts)
    start = min(start, log.next - 1)
    reading = ReadState("app", start=start, limit=limit, until=until, follow=True, streams=True)
    left = [one for one in log.stored if one[0] + one[1] > start]
    found: list[int] = []
    while left and not reading.is_done:
        here, left = left[:per_reply], left[per_reply:]
        at = max(start, here[0][0])
        reply = Batches(at, sum(here[-1][:2]) - at, bytearray().join(data for _, _, data in here))
        reading.arrived(reply)
        found += [n for batch in reading.cut(reply) for n in range(batch.offset, batch.next)]
    assert found == list(range(log.next))[start:until][:limit]
    is_limit_reached = limit is not None and limit <= len(found)
    assert reading.is_done == (is_limit_reached or (until is not None and until <= log.next))


@pytest.mark.parametrize("end", [{"limit": 2}, {"until": 2}])
def test_a_gap_after_the_end_is_not_told(end: dict[str, int]) -> None:
    gaps: list[Gap | Rewind] = []
    reading = ReadState("app", follow=True, streams=True, on_gap=gaps.append, **end)  # type: ignore[arg-type]
    reply = Batches(0, 5, batch(0, [b"0", b"1"]) + gap(2, 3))
    reading.arrived(reply)
    assert [batch.messages for batch in reading.cut(reply)] == [[b"0", b"1"]]
    assert reading.is_done
    assert not gaps


def asked(**options: Any) -> tuple[bytes, bool]:
    """The next command line, without its end, and whether it starts a stream."""
    command = ReadState("app", read_bytes=100, **options).ask()
    return command.line.rstrip(), command.is_stream


def test_a_stream_is_asked_for_where_it_can_be_used() -> None:
    following: dict[str, Any] = {"streams": True, "follow": True}
    assert asked(**following) == (b"FOLLOW app first bytes=100", True)
    assert asked(**following, start=At(7), limit=3) == (b"FOLLOW app @7 bytes=100", True)
    assert asked(**following, tail=3) == (b"TAIL app 3", False)
    assert asked(streams=True, limit=3) == (b"READ app first 3 bytes=100", False)
    polling = b"READ app first 3 bytes=100 wait=30000"
    assert asked(follow=True, limit=3) == (polling, False)
    assert asked(**following, limit=3, until_ms=1 << 60) == (polling, False)


def test_a_reader_that_was_at_the_end_follows_with_a_stream() -> None:
    reading = ReadState("app", streams=True)
    reading.arrived(Batches(5, 0, b""))
    assert reading.is_done
    reading.follow()
    assert not reading.is_done
    assert reading.ask().line == b"FOLLOW app 5 bytes=1048576\r\n"
    reading.arrived(Batches(5, 0, b""))  # a heartbeat
    assert not reading.is_done


def test_a_server_without_streams_is_asked_to_read() -> None:
    unknown = UnknownCommand("no command 'FOLLOW'; HELP lists them")
    reading = ReadState("app", start=3, follow=True, streams=True)
    reading.refused(unknown)
    assert reading.ask().line.startswith(b"READ app 3 ")
    with pytest.raises(UnknownCommand):
        reading.refused(unknown)


def test_the_client_knows_how_often_the_server_sends_a_heartbeat() -> None:
    assert commands.HEARTBEAT_MS == 1000 * HEARTBEAT_S


def test_a_gap_is_told_and_does_not_count() -> None:
    gaps: list[Gap | Rewind] = []
    log = Log([batch(0, [b"0", b"1"]), gap(2, 3), batch(5, [b"5", b"6"])], [2, 3, 2])
    reader = Reader(log, "app", start=1, limit=2, on_gap=gaps.append)
    assert offsets(reader) == [1, 5]
    assert [(g.offset, g.messages) for g in gaps] == [(2, 3)]
    assert "skipped offsets 2 to 4" in str(gaps[0])


def test_a_gap_is_logged_where_nobody_asked_for_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert offsets(Reader(Log([gap(0, 3)], [3]), "app", start=1)) == []
    assert "skipped offsets 1 to 2" in caplog.text


def test_an_offset_that_is_gone_is_an_error_unless_the_first_will_do() -> None:
    with pytest.raises(OutOfRange):
        offsets(Reader(numbered([2], first=7), "app", start=3))
    gaps: list[Gap | Rewind] = []
    log = numbered([2], first=7)
    assert offsets(Reader(log, "app", start=3, or_first=True, on_gap=gaps.append)) == [7, 8]
    assert [(g.offset, g.messages) for g in gaps] == [(3, 4)]


def test_an_offset_above_the_end_is_an_error_always() -> None:
    with pytest.raises(OutOfRange):
        offsets(Reader(numbered([2], first=7), "app", start=10, or_first=True))


def test_other_refusals_come_through() -> None:
    class Missing(Log):
        def receive(self) -> Any:
            raise NotFound("no topic app")

    with pytest.raises(NotFound):
        list(Reader(Missing([], []), "app"))


@pytest.mark.parametrize("at", range(0, 200, 3))
def test_a_flipped_bit_never_becomes_a_message(at: int) -> None:
    data = bytearray(batch(0, [b"0" * 40]) + batch(1, [b"1" * 40]))
    at %= len(data)
    data[at] ^= 1
    bodies: list[bytes] = []
    with pytest.raises(DamagedBatch):
        bodies.extend(bytes(found.body) for found in check(Batches(0, 2, data)))
    assert bodies in ([], [b"0" * 40 + b"\n"])


@pytest.mark.parametrize(
    "reply",
    [
        Batches(0, 1, bytearray(batch(1, [b"x"]))),
        Batches(1, 1, bytearray(batch(0, [b"x"]))),
        Batches(0, 3, bytearray(batch(0, [b"x"]))),
        Batches(0, 1, bytearray(batch(0, [b"x", b"y"]))),
        Batches(0, 2, bytearray(batch(0, [b"x"]) + batch(2, [b"y"]))),
        Batches(0, 1, bytearray()),
        Batches(0, 1, bytearray(batch(0, [b"x"])[:-1])),
    ],
)
def test_a_reply_must_be_what_its_line_says(reply: Batches) -> None:
    with pytest.raises(DamagedBatch):
        list(check(reply))


def test_a_sound_sum_over_a_wrong_count_is_damage() -> None:
    body = b"one\ntwo\n"
    data = encode_header(0, 3, len(body), 5, "lines", body_sum(body)) + body
    with pytest.raises(DamagedBatch, match="2 messages, not 3"):
        list(Reader(Log([data], [3]), "app"))


def test_a_sound_sum_over_a_body_that_cannot_be_split_is_damage() -> None:
    data = encode_header(0, 1, 3, 5, "sized", body_sum(b"abc")) + b"abc"
    with pytest.raises(DamagedBatch, match="line of sizes"):
        list(Reader(Log([data], [1]), "app"))


def test_where_it_starts_is_said_as_in_the_protocol() -> None:
    places: list[tuple[Where, Where]] = [("7", 7), ("@9", At(9)), (At(9), At(9)), (7, 7)]
    for start, sent in places:
        log = numbered([9])
        next(iter(Reader(log, "app", start=start)))
        assert isinstance(log.sent[0], Read)
        assert log.sent[0].where == sent
