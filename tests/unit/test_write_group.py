"""What one turn writes: which pushes share a batch, and where each of them ends up."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.batch import JOIN_BYTES, SMALL_BYTES, ScannedBatch, body_sum, reading, scan
from logd.storage.write_group import CheckedBatch, WriteGroup

property_of = settings(max_examples=150)
TIME_MS = 1_700_000_000_000


def written(group: WriteGroup) -> list[ScannedBatch]:
    """The group as the file would have it, checked, and each batch where `placed` says it is."""
    group.close_joined()
    data = b"".join(group.buffers)
    found = list(scan(reading(data), 0, len(data), since_ms=TIME_MS))
    assert [(b.header.offset, b.end - b.position) for b in found] == group.placed
    assert all(b.header.time_ms == TIME_MS for b in found)
    if found:
        assert found[-1].header.next == group.next
    return found


def line(size: int) -> bytes:
    return b"x" * (size - 1) + b"\n"


def sizes(found: list[ScannedBatch]) -> list[int]:
    return [b.header.size for b in found]


def test_small_pushes_share_a_batch() -> None:
    group = WriteGroup(100, TIME_MS)
    assert group.add_plain([b"a\n", b"b\n"], None) == 100
    assert group.add_plain([b"c\n\n\n"], [3]) == 102
    assert group.add_plain([b"d\n", b"e\n"], [1, 1]) == 105
    (batch,) = written(group)
    assert bytes(batch.body) == b"a\nb\nc\n\n\nd\ne\n"
    assert batch.header[:2] == (100, 7)
    assert (batch.header.enc, batch.header.id) == ("lines", "-")
    assert group.next == 107


def test_a_batch_with_a_sum_or_an_id_stays_as_it_was_made() -> None:
    group = WriteGroup(0, TIME_MS)
    assert group.add_plain([b"a\n"], None) == 0
    made = CheckedBatch(b"1\nx", "sized", 1, body_sum(b"1\nx"), "p:7")
    assert group.add(made) == 1
    assert group.add_plain([b"b\n"], None) == 2
    before, kept, after = written(group)
    assert (kept.header.enc, kept.header.sum, kept.header.id) == ("sized", made.sum, "p:7")
    assert bytes(kept.body) == b"1\nx"
    assert (bytes(before.body), bytes(after.body)) == (b"a\n", b"b\n")


@pytest.mark.parametrize(
    ("pushes", "batches"),
    [
        ([(100, 10)], [1000]),
        ([(JOIN_BYTES // 4, 4)], [JOIN_BYTES]),
        ([(JOIN_BYTES // 4, 4), (JOIN_BYTES // 4, 1)], [JOIN_BYTES, JOIN_BYTES // 4]),
        ([(JOIN_BYTES // 4, 4), (2, 1)], [JOIN_BYTES, 2]),
        ([(100, 655), (36, 1)], [JOIN_BYTES]),
        ([(100, 655), (37, 1)], [65_500, 37]),
        ([(100, 655), (100, 655), (100, 35)], [65_500, 65_500, 3_500]),
        ([(SMALL_BYTES, 2)], [2 * SMALL_BYTES]),
        ([(SMALL_BYTES + 1, 1)] * 2, [SMALL_BYTES + 1] * 2),
        ([(100, 1), (SMALL_BYTES + 1, 1), (100, 1)], [100, SMALL_BYTES + 1, 100]),
        ([(1 << 20, 1)], [1 << 20]),
    ],
)
def test_what_shares_a_batch_and_what_does_not(
    pushes: list[tuple[int, int]], batches: list[int]
) -> None:
    group = WriteGroup(0, TIME_MS)
    for size, count in pushes:
        batches_before = group.batches
        group.add_plain([line(size)] * count, None)
        assert group.batches - batches_before <= 1
    assert group.batches == len(batches)
    assert sizes(written(group)) == batches


class Run(NamedTuple):
    """Plain pushes of one size, each with that many messages; or one batch of its own."""

    size: int
    pushes: int
    messages: int
    is_own_batch: bool

    def body(self) -> bytes:
        return line(self.size - self.messages + 1) + b"\n" * (self.messages - 1)


RUNS = st.lists(
    st.builds(
        Run,
        st.integers(5, 200) | st.sampled_from([16_383, 16_384, 16_385, 30_000, 70_000]),
        st.integers(1, 4),
        st.integers(1, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(RUNS, st.integers(0, 1 << 40))
@property_of
def test_every_push_is_where_it_was_told(runs: list[Run], first: int) -> None:
    group, bodies, next_ = WriteGroup(first, TIME_MS), list[bytes](), first
    for run in runs:
        body = run.body()
        if run.is_own_batch:
            offset = group.add(CheckedBatch(body, "lines", run.messages, body_sum(body), "p:1"))
            bodies.append(body)
            added = run.messages
        else:
            counts = None if run.messages == 1 else [run.messages] * run.pushes
            pushes = run.pushes if run.size <= SMALL_BYTES else 1
            offset = group.add_plain([body] * pushes, counts and counts[:pushes])
            bodies += [body] * pushes
            added = run.messages * pushes
        assert offset == next_
        next_ += added
        assert group.next == next_
    found = written(group)
    assert group.size == sum(map(len, group.buffers))
    assert b"".join(bytes(b.body) for b in found) == b"".join(bodies)
    assert found[0].header.offset == first
    for batch in found:
        assert bytes(batch.body).count(b"\n") == batch.header.messages
        assert batch.header.size <= JOIN_BYTES or bytes(batch.body) in bodies


def test_an_empty_group_writes_nothing() -> None:
    group = WriteGroup(5, TIME_MS)
    group.close_joined()
    assert (group.buffers, group.placed, group.next, group.size) == ([], [], 5, 0)
