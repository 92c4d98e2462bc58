"""The small parts of a client: pauses, topic identities, encoding, the progress of a reader,
addresses."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.batch import body_sum, split_body
from logd.client.backoff import Backoff, RetryDeadline
from logd.client.batch_encoder import BatchEncoder
from logd.client.read_progress import SAVE_S, ReadProgress
from logd.wire.addresses import ConnectionLost, parse_address
from logd.wire.topic_identity import TopicIdentity, kept

property_of = settings(max_examples=200)
LOST = ConnectionLost("not a word")


@given(st.integers(1, 100))
@property_of
def test_pauses_grow_to_a_limit_and_start_anew(failures: int) -> None:
    pauses = Backoff(0.05, 5.0)
    for n in range(failures):
        whole_s = min(5.0, 0.05 * 2**n)
        assert whole_s / 2 <= pauses.next_s() <= whole_s
    pauses.reset()
    assert pauses.next_s() <= 0.05


def test_two_who_failed_together_part() -> None:
    assert len({Backoff().next_s() for _ in range(20)}) > 10


@pytest.mark.parametrize(
    ("before", "now", "up_to"),
    [
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 1, 0), 100),
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 2, 100), 100),
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 2, 150), 100),
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 2, 60), 60),
        (TopicIdentity("a", 3, 50), TopicIdentity("a", 3, 50), 100),
        (TopicIdentity("a", 1, 0), TopicIdentity("b", 1, 0), 0),
        (TopicIdentity("a", 1, 0), None, 0),
        (None, None, 0),
        (None, TopicIdentity("a", 1, 0), 100),
        (None, TopicIdentity("a", 2, 60), 60),
    ],
)
def test_how_much_a_topic_has_kept(
    before: TopicIdentity | None, now: TopicIdentity | None, up_to: int
) -> None:
    assert kept(before, now, 100) == up_to


def test_stats_that_are_none() -> None:
    assert TopicIdentity.of({"id": "a", "epoch": "2", "epoch_began": "5", "more": "x"}) == (
        "a",
        2,
        5,
    )
    for stats in ({}, {"id": "a", "epoch": "x", "epoch_began": "0"}):
        with pytest.raises(ValueError):
            TopicIdentity.of(stats)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.booleans())
@property_of
def test_what_is_packed_can_be_taken_out(messages: list[bytes], compressed: bool) -> None:
    batch = BatchEncoder("app", compressed=compressed).encode(messages)
    assert split_body(batch.push.body, batch.push.enc) == messages
    assert (batch.messages, batch.push.messages) == (len(messages), len(messages))
    assert batch.push.sum == body_sum(batch.push.body)
    assert batch.size == len(batch.push.body)
    assert batch.number == 0


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.integers(1, 200))
@property_of
def test_a_batch_has_no_more_than_it_may(messages: list[bytes], most_bytes: int) -> None:
    batch = BatchEncoder("app", compressed=False).encode(messages, most_bytes)
    assert batch.messages == 1 or batch.size <= most_bytes
    assert split_body(batch.push.body, batch.push.enc) == messages[: batch.messages]


def test_compression_only_where_it_pays() -> None:
    packer, rng = BatchEncoder("app", compressed=True), random.Random(1)
    same, noise = [b"the same again"] * 100, [rng.randbytes(1000).replace(b"\n", b"") * 1]
    assert packer.encode(same).push.enc == "lines+zstd"
    assert packer.encode(noise).push.enc == "lines"
    # Now it does not even try for a while, and then it does again.
    encodings = [packer.encode(same).push.enc for _ in range(16)]
    assert encodings == ["lines"] * 15 + ["lines+zstd"]
    assert packer.encode(same).push.enc == "lines+zstd"


def test_what_was_handed_out_is_read_when_the_next_is_asked_for() -> None:
    progress = ReadProgress(0.0)
    progress.asked_again()
    assert progress.unsaved() is None
    progress.handed_out = 5
    assert progress.unsaved() is None
    progress.asked_again()
    assert progress.unsaved() == 5
    progress.handed_out = 6
    assert progress.unsaved() == 5
    progress.commit(None)
    assert progress.unsaved() == 6
    progress.commit(2)
    assert progress.unsaved() == 2


def test_a_place_is_saved_once_and_not_too_often() -> None:
    progress = ReadProgress(10.0)
    progress.found(3)
    progress.commit(3)
    assert not progress.is_due(99.0)
    progress.commit(4)
    assert not progress.is_due(10.0 + SAVE_S / 2)
    assert progress.is_due(10.0 + SAVE_S)
    progress.postpone(11.0)
    assert not progress.is_due(11.0)
    assert progress.is_due(11.0 + SAVE_S)
    progress.saved(4, 12.0)
    assert progress.unsaved() is None


def test_patience_lasts_for_as_long_as_was_said() -> None:
    """The last pause is cut, so that the last try is at the end of the time."""
    deadline, now_s = RetryDeadline(5.0, 100.0), 100.0
    while now_s < 105.0:
        now_s += deadline.pause_s(LOST, now_s)
    assert now_s == pytest.approx(105.0)
    with pytest.raises(ConnectionLost):
        deadline.pause_s(LOST, now_s)


def test_the_patience_of_a_reader() -> None:
    deadline = RetryDeadline(10.0, 100.0)
    assert deadline.pause_s(LOST, 105.0) <= 0.05
    deadline.answered(109.0)
    assert deadline.pause_s(LOST, 118.0) <= 0.05
    with pytest.raises(ConnectionLost):
        deadline.pause_s(LOST, 119.0)
    deadline = RetryDeadline(None, 0.0)
    assert deadline.pause_s(LOST, 1e9) <= 0.05
    deadline.end_within(10.0)
    with pytest.raises(ConnectionLost):
        deadline.pause_s(LOST, 1e9)


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:1774", ("127.0.0.1", 1774)),
        ("[::1]:99", ("::1", 99)),
        ("[::1]", ("::1", 1774)),
        ("logs.example", ("logs.example", 1774)),
    ],
)
def test_addresses(address: str, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed


@pytest.mark.parametrize(
    "address", ["", ":1", "::1", "a:b", "a:", "a:0", "a:65536", "a b:1", "[a:1"]
)
def test_no_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(address)
