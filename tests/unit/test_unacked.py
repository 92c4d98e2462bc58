"""What each reply means for the batches that are not acknowledged. `test_delivery` has a model."""

from __future__ import annotations

import pytest

from logd.batch import body_sum
from logd.client.unacked import (
    MAX_IN_FLIGHT,
    NEVER_ACCEPTED,
    TRY_LATER,
    BatchesLost,
    NumberReused,
    Outcome,
    PushRefused,
    RetryLater,
    UnackedBatch,
    UnackedBatches,
    WriterRefused,
)
from logd.errors import (
    BY_CODE,
    BadRequest,
    Busy,
    Conflict,
    Internal,
    LogdError,
    NoSpace,
    OutOfOrder,
    TooLarge,
    TopicLimit,
)
from logd.wire.commands import Pushed
from logd.wire.requests import Push

RECOVERABLE = sorted(kind.code for kind in (*TRY_LATER, *NEVER_ACCEPTED))
FINAL = sorted(set(BY_CODE) - set(RECOVERABLE) - {"out-of-order", "conflict"})


def batch(n: int) -> UnackedBatch:
    body = b"%d\n" % n
    return UnackedBatch(Push("app", body, sum=body_sum(body)), 1)


def sent(outbox: UnackedBatches, batches: int) -> list[str]:
    """Add batches, and send what may be sent: the ids."""
    for n in range(batches):
        outbox.add(batch(n))
    return pending(outbox)


def pending(outbox: UnackedBatches) -> list[str]:
    ids = []
    while (push := outbox.next()) is not None:
        ids.append(push.id)
    return ids


def test_the_first_on_a_connection_travels_alone() -> None:
    outbox = UnackedBatches("me", max_in_flight=3)
    assert sent(outbox, 6) == ["me:1"]
    assert outbox.answered(Pushed(0, 1)) is None
    assert len(outbox) == 5
    assert pending(outbox) == ["me:2", "me:3", "me:4"]
    assert outbox.lost() is None
    assert pending(outbox) == ["me:2"]
    assert len(outbox) == 5


def test_the_first_of_a_new_life_travels_alone() -> None:
    outbox = UnackedBatches("me", first_own=4)
    for n in range(1, 7):
        known = batch(n)
        known.number = n
        outbox.add(known)
    assert pending(outbox) == ["me:1"]
    outbox.answered(Pushed(0, 1))
    assert pending(outbox) == ["me:2", "me:3"]
    outbox.answered(Pushed(1, 1))
    assert pending(outbox) == []
    outbox.answered(Pushed(2, 1))
    assert pending(outbox) == ["me:4"]
    outbox.answered(Pushed(3, 1))
    assert pending(outbox) == ["me:5", "me:6"]


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_what_each_code_means_for_the_first_of_a_new_name(code: str) -> None:
    outbox = UnackedBatches()
    sent(outbox, 1)
    outcome = outbox.answered(BY_CODE[code]("last=0"))
    kinds = {BadRequest: PushRefused, TooLarge: PushRefused, **dict.fromkeys(TRY_LATER, RetryLater)}
    assert type(outcome) is kinds.get(BY_CODE[code], WriterRefused)


def after_three(*, is_shared: bool = False) -> UnackedBatches:
    """Three are stored, and the fourth is on its way."""
    outbox = UnackedBatches("me", is_shared=is_shared)
    sent(outbox, 4)
    for n in range(3):
        outbox.answered(Pushed(n, 1))
        pending(outbox)
    assert outbox.in_flight == 1
    return outbox


@pytest.mark.parametrize(
    ("error", "is_shared", "kind", "keeps_name"),
    [
        (OutOfOrder("last=3 strange"), False, RetryLater, True),
        (OutOfOrder("last=1 ..."), False, BatchesLost, False),
        (OutOfOrder("last=900 ..."), False, NumberReused, False),
        (OutOfOrder("last=900 ..."), True, WriterRefused, True),
        (OutOfOrder("no number"), False, NumberReused, False),
        (Conflict("another body"), False, NumberReused, False),
        (Conflict("another body"), True, WriterRefused, True),
        (BadRequest("bad"), False, PushRefused, False),
        (Busy("later"), False, RetryLater, True),
    ],
)
def test_numbers_that_are_not_due(
    error: LogdError, is_shared: bool, kind: type[Outcome], keeps_name: bool
) -> None:
    outbox = after_three(is_shared=is_shared)
    outcome = outbox.answered(error)
    assert type(outcome) is kind
    assert (outbox.producer == "me") == keeps_name
    if kind is BatchesLost:
        assert outcome == BatchesLost(2, 3)
    if kind in (BatchesLost, NumberReused):
        assert pending(outbox) == [f"{outbox.producer}:4"]


def test_a_daemon_that_is_never_content_is_hopeless() -> None:
    """Or each new name would be tried without end, as fast as the network allows."""
    outbox = after_three()
    assert isinstance(outbox.answered(OutOfOrder("last=1")), BatchesLost)
    assert len(pending(outbox)) == 1
    assert isinstance(outbox.answered(OutOfOrder("last=1")), WriterRefused)


def test_a_refusal_is_told_when_those_behind_it_are_answered_too() -> None:
    outbox = UnackedBatches("me")
    settled: list[tuple[int, object]] = []
    outbox.settled = lambda batch, result: settled.append((batch.number, result))
    sent(outbox, 5)
    outbox.answered(Pushed(0, 1))
    assert len(pending(outbox)) == 4
    error = BadRequest("bad")
    assert outbox.answered(error) is None
    assert outbox.next() is None
    assert outbox.answered(OutOfOrder("last=1")) is None
    assert outbox.answered(OutOfOrder("last=1")) is None
    outcome = outbox.answered(OutOfOrder("last=1"))
    assert isinstance(outcome, PushRefused)
    assert (outcome.batch.number, outcome.error) == (2, error)
    assert settled == [(1, 0), (2, error)]
    assert pending(outbox) == [f"{outbox.producer}:3"]


def test_a_batch_stored_behind_a_refused_one_is_the_end() -> None:
    outbox = UnackedBatches("me")
    sent(outbox, 3)
    outbox.answered(Pushed(0, 1))
    pending(outbox)
    outbox.answered(NoSpace("full"))
    outcome = outbox.answered(Pushed(1, 1))
    assert isinstance(outcome, WriterRefused)
    assert isinstance(outcome.error, Internal)


@pytest.mark.parametrize("code", FINAL)
def test_what_is_final(code: str) -> None:
    outbox = after_three()
    error = BY_CODE[code]("never")
    assert outbox.answered(error) == WriterRefused(error)


def test_giving_up_hands_back_what_is_left() -> None:
    outbox = after_three()
    outbox.add(batch(9))
    assert [left.number for left in outbox.give_up()] == [4, 5]
    assert (len(outbox), outbox.size, outbox.in_flight) == (0, 0, 0)


@pytest.mark.parametrize("max_in_flight", [0, MAX_IN_FLIGHT + 1])
def test_bounds(max_in_flight: int) -> None:
    with pytest.raises(ValueError, match="max_in_flight"):
        UnackedBatches(max_in_flight=max_in_flight)


def test_topic_limit_is_for_the_whole_writer() -> None:
    outbox = UnackedBatches("me")
    sent(outbox, 1)
    assert isinstance(outbox.answered(TopicLimit("x")), WriterRefused)
    assert len(outbox) == 1
