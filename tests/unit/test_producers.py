"""What is remembered of producers, against a model that forgets nothing it should not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from logd.errors import Conflict, LogdError, OutOfOrder
from logd.storage import producers as producers_module
from logd.storage.producers import KEEP_BATCHES, Producers, StoredId

property_of = settings(max_examples=100)
A, B = "a" * 16, "b" * 16


def push(producers: Producers, id_: str, sum_: str, offset: int) -> StoredId | str:
    """As a topic does it: where it is, or the code of the refusal."""
    try:
        known = producers.stored(id_, sum_)
    except LogdError as error:
        return error.code
    if known is None:
        known = StoredId(offset, 1)
        producers.stage(id_, known, sum_)
    return known


def test_a_dialogue() -> None:
    producers = Producers()
    for line in (
        ("p:5", A, 100, StoredId(100, 1)),  # unknown: may start anywhere
        ("p:5", A, 101, StoredId(100, 1)),  # a retry, while the first is still being written
        ("p:5", B, 101, "conflict"),
        ("p:6", A, 101, StoredId(101, 1)),
        ("p:8", A, 102, "out-of-order"),
        ("p:4", A, 102, "out-of-order"),
        ("q:0", A, 102, StoredId(102, 1)),
    ):
        assert push(producers, *line[:3]) == line[3]
    producers.commit()
    for line in (
        ("p:5", A, 103, StoredId(100, 1)),
        ("p:5", B, 103, "conflict"),
        ("p:6", A, 103, StoredId(101, 1)),
        ("p:8", A, 103, "out-of-order"),
        ("p:7", B, 103, StoredId(103, 1)),
        ("p:6", A, 104, StoredId(101, 1)),  # known from before, with a newer one staged
        ("q:1", A, 104, StoredId(104, 1)),
    ):
        assert push(producers, *line[:3]) == line[3]
    producers.rollback()
    assert push(producers, "p:7", A, 103) == StoredId(103, 1), "as if never seen"
    assert push(producers, "q:2", A, 104) == "out-of-order"


def test_the_error_says_which_number_was_last() -> None:
    producers = Producers()
    producers.note("p:41", 0, 1, A)
    for id_ in ("p:43", "p:40", "p:0"):
        with pytest.raises(OutOfOrder, match=r"^out-of-order: last=41 "):
            producers.stored(id_, A)
    with pytest.raises(Conflict):
        producers.stored("p:41", B)


def test_a_group_that_fails_leaves_no_trace() -> None:
    producers = Producers()
    empty = producers.encode(0, 0)
    for n in range(3):
        push(producers, f"p:{n}", A, n)
    producers.rollback()
    assert len(producers) == 0
    assert producers.encode(0, 0) == empty
    assert producers.stored("p:99", A) is None, "still unknown, so it may start anywhere"


def test_names_with_dots_and_dashes_are_kept_apart() -> None:
    producers = Producers()
    for i, name in enumerate(["a", "a.b", "a-b", "a_b", "A", "1"]):
        producers.note(f"{name}:{i}", i, 1, A)
    assert len(producers) == 6
    assert [producers.stored(f"{name}:{i}", A) for i, name in ((1, "a.b"), (4, "A"))] == [
        (1, 1),
        (4, 1),
    ]


@pytest.mark.parametrize("batches", [1023, 1024, 1025, 2047, 2048, 2049, 5000])
def test_the_last_1024_batches_are_remembered(batches: int) -> None:
    assert KEEP_BATCHES == 1024
    fresh = Producers()
    for n in range(batches):
        assert push(fresh, f"p:{n}", A, 7 * n) == StoredId(7 * n, 1)
        fresh.commit()
    reopened = Producers.decode(fresh.encode(0, 0))
    assert reopened is not None
    for producers in (fresh, reopened[0]):
        kept = range(max(0, batches - 1024), batches)
        assert producers.stored(f"p:{kept[0]}", A) == StoredId(7 * kept[0], 1)
        assert producers.stored(f"p:{kept[-1]}", A) == StoredId(7 * kept[-1], 1)
        assert producers.stored(f"p:{batches}", A) is None
        if kept[0]:
            assert push(producers, f"p:{kept[0] - 1}", A, 0) == "out-of-order"


def test_producers_that_wrote_longest_ago_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert producers_module.KEEP_PRODUCERS >= 100_000
    monkeypatch.setattr(producers_module, "KEEP_PRODUCERS", 3)
    producers = Producers()
    for i, id_ in enumerate(["a:0", "b:0", "c:0", "a:1", "d:0"]):
        producers.note(id_, i, 1, A)
    assert len(producers) == 3
    assert push(producers, "b:0", A, 9) == StoredId(9, 1), "b is unknown again"
    assert push(producers, "a:1", A, 9) == StoredId(3, 1)
    assert push(producers, "c:0", A, 9) == StoredId(2, 1)


def test_a_hundred_thousand_producers_fit() -> None:
    producers = Producers()
    for i in range(100_000):
        producers.note(f"p{i}:1", i, 1, A)
    assert producers.stored("p0:1", A) == StoredId(0, 1)
    assert len(producers) == 100_000


# -- the .ids file ------------------------------------------------------------------------------


def some_producers() -> Producers:
    producers = Producers()
    for i, id_ in enumerate(["p:7", "p:8", "web-1.example:0", f"{'x' * 64}:{2**63 - 1}"]):
        producers.note(id_, i * 10, i + 1, f"{i:016x}")
    return producers


def test_what_is_saved_comes_back() -> None:
    data = some_producers().encode(123, 456)
    decoded = Producers.decode(data)
    assert decoded is not None
    producers, next_, position = decoded
    assert (next_, position) == (123, 456)
    assert producers.stored("p:7", f"{0:016x}") == StoredId(0, 1)
    assert producers.stored("p:8", f"{1:016x}") == StoredId(10, 2)
    assert producers.stored(f"{'x' * 64}:{2**63 - 1}", f"{3:016x}") == StoredId(30, 4)
    assert producers.encode(123, 456) == data


def test_every_flipped_bit_of_a_saved_memory_is_noticed() -> None:
    data = some_producers().encode(123, 456)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            assert Producers.decode(bytes(flipped)) is None


def test_every_cut_of_a_saved_memory_is_noticed() -> None:
    data = some_producers().encode(123, 456)
    for end in range(len(data)):
        assert Producers.decode(data[:end]) is None
    assert Producers.decode(data + b"\0") is None


@given(st.binary(max_size=200))
@property_of
def test_any_bytes_are_a_memory_or_none(data: bytes) -> None:
    assert Producers.decode(data) is None


# -- against a model ----------------------------------------------------------------------------

Known = dict[str, dict[int, tuple[StoredId, str]]]
NAMES = st.sampled_from(["p", "q", "r.s-t"])
NUMBERS = st.integers(0, 12)
SUMS = st.sampled_from([A, B])


class ProducersModel(RuleBasedStateMachine):
    """The model keeps every batch in a dictionary, and copies the dictionary to stage."""

    def __init__(self) -> None:
        super().__init__()
        self.producers = Producers()
        self.committed: Known = {}
        self.staged: Known = {}
        self.next = 0
        self.committed_next = 0

    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.next = self.committed_next = start

    def expected(self, name: str, n: int, sum_: str) -> StoredId | str:
        batches = self.staged.get(name)
        if not batches or n == max(batches) + 1:
            return StoredId(self.next, 1)
        if n not in batches:
            return "out-of-order"
        place, stored_sum = batches[n]
        return place if stored_sum == sum_ else "conflict"

    @rule(name=NAMES, n=NUMBERS, sum_=SUMS)
    def push_any(self, name: str, n: int, sum_: str) -> None:
        expected = self.expected(name, n, sum_)
        assert push(self.producers, f"{name}:{n}", sum_, self.next) == expected
        if expected == StoredId(self.next, 1):
            self.staged.setdefault(name, {})[n] = (StoredId(self.next, 1), sum_)
            self.next += 1

    @rule(name=NAMES, sum_=SUMS)
    def push_next(self, name: str, sum_: str) -> None:
        self.push_any(name, max(self.staged.get(name, {-1: None})) + 1, sum_)

    @rule()
    def commit(self) -> None:
        self.producers.commit()
        self.committed = {name: dict(batches) for name, batches in self.staged.items()}
        self.committed_next = self.next

    @rule()
    def rollback(self) -> None:
        self.producers.rollback()
        self.staged = {name: dict(batches) for name, batches in self.committed.items()}
        self.next = self.committed_next

    @precondition(lambda self: self.staged == self.committed)
    @rule()
    def restart(self) -> None:
        decoded = Producers.decode(self.producers.encode(self.next, 5))
        assert decoded is not None
        assert decoded[1:] == (self.next, 5)
        self.producers = decoded[0]

    @precondition(lambda self: self.staged == self.committed)
    @rule()
    def recover(self) -> None:
        """Read back from the log, as a start after a kill does."""
        log = [
            (place.offset, f"{name}:{n}", sum_)
            for name, batches in self.committed.items()
            for n, (place, sum_) in batches.items()
        ]
        self.producers = Producers()
        for offset, id_, sum_ in sorted(log):
            self.producers.note(id_, offset, 1, sum_)
            self.producers.note("-", offset, 1, sum_)

    @invariant()
    def knows_as_many(self) -> None:
        assert len(self.producers) == len(self.committed)


def test_against_the_model() -> None:
    run_state_machine_as_test(
        ProducersModel, settings=settings(max_examples=100, stateful_step_count=40)
    )
