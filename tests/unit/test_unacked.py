"""The outbox against a model of the daemon: whatever happens, each batch once and in order."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.batch import body_sum
from logd.client.unacked import (
    MAX_IN_FLIGHT,
    TOO_BAD,
    TRY_LATER,
    Clash,
    Forgotten,
    Hopeless,
    Later,
    Outcome,
    PushRefused,
    PushStored,
    UnackedBatch,
    UnackedBatches,
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
from logd.storage.producers import Producers
from logd.storage.producers import StoredId as Place
from logd.wire.commands import Pushed
from logd.wire.requests import Push

RECOVERABLE = sorted(kind.code for kind in (*TRY_LATER, *TOO_BAD))
FINAL = sorted(set(BY_CODE) - set(RECOVERABLE) - {"out-of-order", "conflict"})


def batch(n: int) -> UnackedBatch:
    body = b"%d\n" % n
    return UnackedBatch(Push("app", body, sum=body_sum(body)), 1)


class Model:
    """A daemon with the true rules for ids, and both directions of a connection to it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes]] = []  # id and body of what it has
        self.bodies: dict[str, bytes] = {}  # each id that ever came in, and its body
        self.producers = Producers()
        self.asked: deque[Push] = deque()
        self.replies: deque[Pushed | LogdError] = deque()

    def send(self, push: Push) -> None:
        body = bytes(push.body)
        assert self.bodies.setdefault(push.id, body) == body, "two bodies under one id"
        self.asked.append(push)

    def carry_out(self, code: str | None = None) -> None:
        """The oldest push that came in; refused where there is a code.

        What was good enough once is not called bad later.
        """
        if not self.asked:
            return
        push = self.asked.popleft()
        is_known = any(body == push.body for _, body in self.log)
        if code is not None and not (is_known and issubclass(BY_CODE[code], TOO_BAD)):
            self.replies.append(BY_CODE[code]("told to"))
            if BY_CODE[code].closes:
                self.asked.clear()  # it hears nothing more
            return
        assert push.sum is not None
        try:
            place = self.producers.stored(push.id, push.sum)
        except LogdError as error:
            self.replies.append(error)
            return
        if place is None:
            place = Place(len(self.log), 1)
            self.producers.stage(push.id, place, push.sum)
            self.producers.commit()
            self.log.append((push.id, bytes(push.body)))
        self.replies.append(Pushed(*place))

    def cut(self) -> None:
        self.asked.clear()
        self.replies.clear()

    def forget_from(self, offset: int) -> list[bytes]:
        """A power cut: the newest batches are gone, and so is what was known of their ids."""
        gone = [body for _, body in self.log[offset:]]
        del self.log[offset:]
        self.producers = Producers()
        for i, (id_, body) in enumerate(self.log):
            self.producers.note(id_, i, 1, body_sum(body))
        return gone


class Run:
    """An outbox at work on a model, and what it says became of each batch."""

    def __init__(self, max_in_flight: int) -> None:
        self.model = Model()
        self.outbox = UnackedBatches(max_in_flight=max_in_flight)
        self.outbox.settled = lambda batch, result: self.settled.append(bytes(batch.push.body))
        self.settled: list[bytes] = []
        self.refused: list[bytes] = []
        self.gone: list[bytes] = []
        self.outcomes: list[Outcome] = []
        self.added = 0
        self.most_in_flight = max_in_flight

    def add(self) -> None:
        self.outbox.add(batch(self.added))
        self.added += 1

    def send(self, most: int) -> None:
        for _ in range(most):
            push = self.outbox.next()
            if push is None:
                return
            self.model.send(push)
            assert self.outbox.in_flight <= self.most_in_flight

    def answer(self) -> None:
        if self.model.replies:
            self.note(self.outbox.answered(self.model.replies.popleft()))

    def lose(self) -> None:
        self.model.cut()
        self.note(self.outbox.lost())

    def crash(self, keep: int) -> None:
        """The daemon's machine loses power. What was never acknowledged is sent again anyway."""
        gone = self.model.forget_from(min(keep, len(self.model.log)))
        self.gone += [body for body in gone if body in self.settled]
        self.lose()

    def note(self, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        self.outcomes.append(outcome)
        assert not isinstance(outcome, Hopeless), outcome
        assert not isinstance(outcome, Clash), outcome
        if isinstance(outcome, PushRefused):
            self.refused.append(bytes(outcome.batch.push.body))
        if isinstance(outcome, Later):
            assert self.outbox.next() is None
            self.outbox.go_on()

    def finish(self) -> None:
        for _ in range(10 * self.added + 100):
            self.send(100)
            self.model.carry_out()
            self.answer()
            if self.outbox.in_flight and not self.model.asked and not self.model.replies:
                self.lose()  # it closed the connection
        assert len(self.outbox) == self.outbox.in_flight == self.outbox.size == 0

    def check(self) -> None:
        """All that was added is there once and in order, but for what was refused or is gone."""
        wanted = [b"%d\n" % n for n in range(self.added)]
        assert self.settled == wanted
        lost = set(self.refused) | set(self.gone)
        assert [body for _, body in self.model.log] == [b for b in wanted if b not in lost]


class Round(NamedTuple):
    """Some of everything, in the order in which it can matter; then perhaps a fault."""

    added: int
    sent: int
    verdicts: list[str | None]  # of the pushes that came in: None stores, a code refuses
    answered: int
    ending: int | None  # None: none; -1: the connection is lost; else a crash that keeps so many


ROUNDS = st.builds(
    Round,
    st.integers(0, 4),
    st.integers(0, 6),
    st.lists(st.none() | st.sampled_from([*RECOVERABLE, *["too-large", "bad-request"] * 4])),
    st.integers(0, 6),
    st.none() | st.just(-1) | st.integers(0, 3) | st.integers(0, 20),
)


@given(st.lists(ROUNDS, max_size=12), st.sampled_from([1, 2, 5, 16]))
@settings(max_examples=800)
def test_whatever_happens_each_batch_is_there_once_and_in_order(
    rounds: list[Round], max_in_flight: int
) -> None:
    run = Run(max_in_flight)
    for added, sent, verdicts, answered, ending in rounds:
        for _ in range(added):
            run.add()
        run.send(sent)
        for verdict in verdicts:
            run.model.carry_out(verdict)
        for _ in range(answered):
            run.answer()
        if ending == -1:
            run.lose()
        elif ending is not None:
            run.crash(ending)
    run.finish()
    run.check()


# -- one by one ---------------------------------------------------------------------------------


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
    assert isinstance(outbox.answered(Pushed(0, 1)), PushStored)
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
    kinds = {BadRequest: PushRefused, TooLarge: PushRefused, **dict.fromkeys(TRY_LATER, Later)}
    assert type(outcome) is kinds.get(BY_CODE[code], Hopeless)


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
        (OutOfOrder("last=3 strange"), False, Later, True),
        (OutOfOrder("last=1 ..."), False, Forgotten, False),
        (OutOfOrder("last=900 ..."), False, Clash, False),
        (OutOfOrder("last=900 ..."), True, Hopeless, True),
        (OutOfOrder("no number"), False, Clash, False),
        (Conflict("another body"), False, Clash, False),
        (Conflict("another body"), True, Hopeless, True),
        (BadRequest("bad"), False, PushRefused, False),
        (Busy("later"), False, Later, True),
    ],
)
def test_numbers_that_are_not_due(
    error: LogdError, is_shared: bool, kind: type[Outcome], keeps_name: bool
) -> None:
    outbox = after_three(is_shared=is_shared)
    outcome = outbox.answered(error)
    assert type(outcome) is kind
    assert (outbox.producer == "me") == keeps_name
    if kind is Forgotten:
        assert outcome == Forgotten(2, 3)
    if kind in (Forgotten, Clash):
        assert pending(outbox) == [f"{outbox.producer}:4"]


def test_a_daemon_that_is_never_content_is_hopeless() -> None:
    """Or each new name would be tried without end, as fast as the network allows."""
    outbox = after_three()
    assert isinstance(outbox.answered(OutOfOrder("last=1")), Forgotten)
    assert len(pending(outbox)) == 1
    assert isinstance(outbox.answered(OutOfOrder("last=1")), Hopeless)


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
    assert isinstance(outcome, Hopeless)
    assert isinstance(outcome.error, Internal)


@pytest.mark.parametrize("code", FINAL)
def test_what_is_final(code: str) -> None:
    outbox = after_three()
    error = BY_CODE[code]("never")
    assert outbox.answered(error) == Hopeless(error)


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
    assert isinstance(outbox.answered(TopicLimit("x")), Hopeless)
    assert len(outbox) == 1
