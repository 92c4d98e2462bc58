"""What a writer's delivery decides: by numbers alone, without a clock or a connection."""

from __future__ import annotations

import pytest

from logd.client.backoff import LONGEST_S, RetryDeadline
from logd.client.delivery_policy import DeliveryPolicy, Event, GivenUp, Gone
from logd.client.read_progress import SAVE_S, ReadProgress
from logd.client.unacked import PushRefused, UnackedBatch, UnackedBatches
from logd.errors import BadRequest, Conflict, LogdError, NoSpace, OutOfOrder
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Pushed
from logd.wire.requests import Push
from logd.wire.topic_identity import TopicIdentity

SILENCE = ConnectionLost("not a word")


def shipping(
    *, patience_s: float | None = 60.0, forgives: bool = False, batches: int = 3
) -> DeliveryPolicy:
    outbox = UnackedBatches("me", is_shared=False)
    made = DeliveryPolicy(
        outbox, patience_s=patience_s, forgives_refusals=forgives, silence=SILENCE
    )
    made.begin(100.0)
    for _ in range(batches):
        outbox.add(UnackedBatch(Push("app", b"x\n"), 1))
    return made


def send(made: DeliveryPolicy) -> None:
    while made._outbox.next() is not None:
        pass


def answer(made: DeliveryPolicy, answer: Pushed | LogdError, now_s: float) -> list[Event]:
    made._outbox.settled = lambda batch, result: made.settled(batch, result, now_s)
    return made.answered(answer, now_s)


def only(events: list[Event]) -> Event:
    (event,) = events
    return event


@pytest.mark.parametrize("settled_by", [Pushed(0, 1), BadRequest("no")])
def test_patience_begins_with_the_first_that_waits_and_again_with_each_that_is_settled(
    settled_by: Pushed | LogdError,
) -> None:
    made = shipping(patience_s=10.0, forgives=True)
    assert made.look(110.0) == []
    assert made.next_look_s(105.0) == 110.0
    send(made)
    answer(made, settled_by, 109.0)
    assert made.look(119.0) == []
    given_up = only(made.look(119.1))
    assert given_up == GivenUp(SILENCE)
    assert made.failure is SILENCE


def test_giving_up_says_the_newest_trouble() -> None:
    made = shipping(patience_s=10.0)
    newest = ConnectionLost("refused")
    made.put_off(ConnectionLost("reset"), 101.0)
    made.put_off(newest, 102.0)
    made.look(200.0)
    assert made.failure is newest
    assert made.fail(ConnectionLost("later")) == [GivenUp(newest)]


def test_without_patience_it_never_gives_up() -> None:
    made = shipping(patience_s=None)
    assert made.look(1e9) == []
    assert made.next_look_s(1e9) is None


def test_a_pause_grows_and_is_not_forgotten_though_it_ended_since_the_last_look() -> None:
    made = shipping(patience_s=None)
    made.put_off(SILENCE, 100.0)
    first = made.next_look_s(100.0)
    assert first is not None
    assert not made.may_try(first - 0.001)
    assert made.may_try(first)
    assert made.next_look_s(100.0) == first  # whatever the clock says by now
    for _ in range(20):
        made.put_off(SILENCE, 100.0)
    last = made.next_look_s(100.0)
    assert last is not None
    assert LONGEST_S / 2 <= last - 100.0 <= LONGEST_S


def test_after_a_full_disk_nothing_is_sent_before_the_pause_is_over() -> None:
    made = shipping()
    send(made)
    assert answer(made, NoSpace("full"), 100.0) == []
    assert made._outbox.next() is None
    again = made.next_look_s(100.0)
    assert again is not None
    made.look(again)
    assert made._outbox.next() is not None


@pytest.mark.parametrize(
    ("before", "now", "gone"),
    [
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 1, 0), False),
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 2, 1), False),
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 2, 0), True),
        (TopicIdentity("a", 1, 0), TopicIdentity("b", 1, 0), True),
        (TopicIdentity("a", 1, 0), None, True),
        (None, TopicIdentity("a", 1, 0), False),
    ],
)
def test_what_was_acknowledged_and_is_gone_is_told_once(
    before: TopicIdentity | None, now: TopicIdentity | None, gone: bool
) -> None:
    made = shipping()
    assert made.connected(before) == []
    send(made)
    answer(made, Pushed(0, 1), 101.0)
    made.lost(SILENCE, 102.0)
    assert made.trouble is SILENCE
    assert [type(event) for event in made.connected(now)] == ([Gone] if gone else [])
    assert made.trouble is None
    assert made.connected(now) == []
    send(made)
    told = answer(made, OutOfOrder("last=0"), 103.0)  # the number's word for the same loss
    assert [type(event) for event in told] == ([] if gone else [Gone])


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (BadRequest("no"), [GivenUp]),
        (OutOfOrder("last=0"), []),
        (Conflict("other"), [Gone]),
        (LogdError("no"), [GivenUp]),
    ],
)
def test_what_each_refusal_leads_to(error: LogdError, events: list[type[Event]]) -> None:
    made = shipping(batches=1)
    send(made)
    assert [type(event) for event in answer(made, error, 101.0)] == events
    assert (made.failure is None) == (GivenUp not in events)


def test_a_refusal_can_be_forgiven() -> None:
    made = shipping(forgives=True)
    send(made)
    assert isinstance(only(answer(made, BadRequest("no"), 101.0)), PushRefused)
    assert made.failure is None
    assert made._outbox.next() is not None


# -- readers --------------------------------------------------------------------------------------


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
    progress.put_off(11.0)
    assert not progress.is_due(11.0)
    assert progress.is_due(11.0 + SAVE_S)
    progress.saved(4, 12.0)
    assert progress.unsaved() is None


def test_patience_lasts_for_as_long_as_was_said() -> None:
    """The last pause is cut, so that the last try is at the end of the time."""
    patience, now_s = RetryDeadline(5.0, 100.0), 100.0
    while now_s < 105.0:
        now_s += patience.pause_s(SILENCE, now_s)
    assert now_s == pytest.approx(105.0)
    with pytest.raises(ConnectionLost):
        patience.pause_s(SILENCE, now_s)


def test_the_patience_of_a_reader() -> None:
    patience = RetryDeadline(10.0, 100.0)
    assert patience.pause_s(SILENCE, 105.0) <= 0.05
    patience.answered(109.0)
    assert patience.pause_s(SILENCE, 118.0) <= 0.05
    with pytest.raises(ConnectionLost):
        patience.pause_s(SILENCE, 119.0)
    patience = RetryDeadline(None, 0.0)
    assert patience.pause_s(SILENCE, 1e9) <= 0.05
    patience.end_within(10.0)
    with pytest.raises(ConnectionLost):
        patience.pause_s(SILENCE, 1e9)
