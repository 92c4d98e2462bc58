"""Which buffer a large push is received into, and who may keep it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from logd.net.large_bodies import LargeBodyReceiver
from logd.net.request_turns import RequestTurns
from logd.protocol import Budget

LARGE = 1 << 20


class Connection:
    def __init__(self) -> None:
        self.input = RequestTurns(cast(Any, self), 16 << 20, Budget(64 << 20), None)
        self.input.parser.likely_bytes = LARGE
        self.copied: list[bytes] = []
        self.kept: list[memoryview] = []
        self.data_received, self.feed = self.copied.append, self.kept.append


def receiver_of(connection: Connection) -> LargeBodyReceiver:
    return LargeBodyReceiver(cast(Any, connection), connection.input, connection.feed)


@pytest.mark.parametrize("size", [1, 10_000, LARGE // 2, LARGE])
def test_what_is_kept_fills_most_of_its_buffer(size: int) -> None:
    """Else pushes of 10 KB would each hold a megabyte until they are stored."""
    connection = Connection()
    receiver = receiver_of(connection)
    buffer = receiver.get_buffer(-1)
    buffer[:size] = b"x" * size
    receiver.buffer_updated(size)
    if size == LARGE:
        assert [bytes(data) for data in connection.kept] == [b"x" * size]
    else:
        assert connection.copied == [b"x" * size]
        assert connection.input.parser.likely_bytes == 0, (
            "it guessed wrong: a small buffer next time"
        )


def test_connections_that_send_nothing_more_hold_one_buffer_between_them() -> None:
    """The loop asks for room again when a push has just filled what there was; nothing comes."""
    receivers = [receiver_of(Connection()) for _ in range(100)]
    assert len({id(receiver.get_buffer(-1)) for receiver in receivers}) == 1


def test_what_is_kept_is_nobody_elses() -> None:
    one, other = Connection(), Connection()
    for n, connection in enumerate((one, other, one)):
        receiver = receiver_of(connection)
        buffer = receiver.get_buffer(-1)
        buffer[:LARGE] = b"%d" % n * LARGE
        receiver.buffer_updated(LARGE)
    kept = [bytes(data[:1]) for data in (*one.kept, *other.kept)]
    assert kept == [b"0", b"2", b"1"]


def test_room_that_was_not_used_is_not_taken_for_what_came_later() -> None:
    connection = Connection()
    receiver = receiver_of(connection)
    receiver.get_buffer(-1)[:4] = b"old!"
    connection.input.parser.likely_bytes = 0
    receiver.get_buffer(-1)[:4] = b"new!"
    receiver.buffer_updated(4)
    assert (connection.copied, connection.kept) == ([b"new!"], [])
