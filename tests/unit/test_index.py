"""The sparse index alone: its bytes, its spacing, its bisections."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from logd.storage.index import ENTRY_BYTES, INTERVAL_BYTES, BadIndex, Index, IndexEntry, _swapped

property_of = settings(max_examples=200)


def test_golden_bytes_of_an_entry() -> None:
    fields = bytes.fromhex("0500000000000000 0010000000000000 0068e5cf8b010000")
    data = IndexEntry(5, 4096, 1_700_000_000_000).encode()
    assert data == fields + xxh3_64_intdigest(fields).to_bytes(8, "little")
    assert struct.unpack("<QQQQ", data)[:3] == (5, 4096, 1_700_000_000_000)
    assert len(data) == ENTRY_BYTES


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9000), st.integers(0, 5)), min_size=1))
@property_of
def test_lookups_against_a_walk(steps: list[tuple[int, int, int]]) -> None:
    """One entry for the first batch, then one for each that starts an interval or more behind."""
    index, listed = Index(), list[IndexEntry]()
    offset, position, time_ms = 100, 0, 1000
    for messages, size, later_ms in steps:
        entry = IndexEntry(offset, position, time_ms)
        if not listed or position - listed[-1].position >= INTERVAL_BYTES:
            listed.append(entry)
        index.note(*entry)
        offset, position, time_ms = offset + messages, position + size, time_ms + later_ms
    assert index.encoded() == b"".join(entry.encode() for entry in listed)
    assert [index.entry(i) for i in range(len(index))] == listed
    for reopened in (index, Index(bytearray(index.encoded()))):
        for at in range(100, offset + 2):
            assert reopened.at_offset(at) == max(e for e in listed if e.offset <= at)
        for at in range(0, position + 2, 97):
            assert reopened.at_position(at) == max(e for e in listed if e.position <= at)
        for at in range(998, time_ms + 3):
            older = [e for e in listed if e.time_ms < at]
            assert reopened.before_time(at) == (max(older) if older else listed[0])


def test_an_index_goes_on_where_it_was_saved() -> None:
    index = Index(bytearray(IndexEntry(0, 0, 1).encode()))
    index.note(1, INTERVAL_BYTES - 1, 2)
    assert len(index) == 1
    index.note(2, INTERVAL_BYTES, 3)
    assert index.encoded(1) == IndexEntry(2, INTERVAL_BYTES, 3).encode()


def test_nothing_lies_before_the_first_entry() -> None:
    index = Index()
    for ask in (index.at_offset, index.at_position):
        with pytest.raises(BadIndex):
            ask(5)
    index.note(10, 0, 1)
    with pytest.raises(BadIndex):
        index.at_offset(9)


@pytest.mark.parametrize("at", range(ENTRY_BYTES))
def test_every_flipped_bit_of_an_entry_is_noticed(at: int) -> None:
    for bit in range(8):
        data = bytearray(IndexEntry(5, 4096, 7).encode() + IndexEntry(6, 9000, 8).encode())
        data[at] ^= 1 << bit
        index = Index(data)
        with pytest.raises(BadIndex):
            index.entry(0)
        assert index.entry(1) == (6, 9000, 8)


def test_a_machine_with_the_other_order_of_bytes_finds_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What such a machine sees of these fields is what this one sees of swapped ones."""
    listed = [IndexEntry(*map(_swapped, (offset, 9 * offset, 7))) for offset in (3, 300, 70_000)]
    monkeypatch.setattr("logd.storage.index._key", _swapped)
    index = Index()
    for entry in listed:
        index.append(entry)
    for offset in (3, 299, 300, 69_999, 70_000, 1 << 40):
        assert index.at_offset(offset) == [e for e in listed if _swapped(e.offset) <= offset][-1]
    assert index.at_position(2700) == listed[1]
