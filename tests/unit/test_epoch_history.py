"""Epoch histories against plain lists that have the epoch of every offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from logd.cluster.epoch_history import EpochHistory, EpochStart


def history_of(epochs: list[int]) -> EpochHistory:
    history = EpochHistory()
    for offset, epoch in enumerate(epochs):
        history = history.began(epoch, offset)
    return history


def agreeing(one: list[int], other: list[int]) -> int:
    """The first offset at which two lists differ, or at which one ends."""
    for offset, (here, there) in enumerate(zip(one, other, strict=False)):
        if here != there:
            return offset
    return min(len(one), len(other))


EPOCHS = st.lists(st.integers(1, 6), max_size=12).map(sorted)


@given(EPOCHS, EPOCHS)
def test_logs_agree_as_far_as_their_epochs_do(one: list[int], other: list[int]) -> None:
    here, there = history_of(one), history_of(other)
    assert here.agrees_to(len(one), there, len(other)) == agreeing(one, other)
    assert there.agrees_to(len(other), here, len(one)) == agreeing(one, other)


@given(EPOCHS, st.integers(0, 12))
def test_a_truncated_history_is_that_of_the_shorter_log(epochs: list[int], next_: int) -> None:
    assert history_of(epochs).truncated(next_).starts == history_of(epochs[:next_]).starts


@given(EPOCHS, st.integers(0, 11))
def test_the_epoch_of_an_offset(epochs: list[int], offset: int) -> None:
    expected = epochs[offset] if offset < len(epochs) else max(epochs, default=0)
    assert history_of(epochs).epoch_of(offset) == expected


def test_an_epoch_without_batches_is_replaced_by_the_next_one() -> None:
    history = EpochHistory((EpochStart(1, 0),)).began(2, 5).began(3, 5)
    assert history.starts == (EpochStart(1, 0), EpochStart(3, 5))


def test_an_empty_log_agrees_with_everything_up_to_its_end() -> None:
    assert EpochHistory().agrees_to(0, EpochHistory((EpochStart(4, 0),)), 9) == 0


def test_offsets_before_the_first_epoch_are_those_of_a_log_without_a_cluster() -> None:
    """A daemon that joined a cluster later; both nodes have the same restored backup."""
    here, there = EpochHistory((EpochStart(1, 100),)), EpochHistory((EpochStart(2, 100),))
    assert here.agrees_to(150, there, 120) == 100
