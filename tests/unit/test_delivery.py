"""The delivery of a writer: no sockets, a fake clock, and a model of the server."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logd.batch import body_sum
from logd.client.backoff import LONGEST_S
from logd.client.delivery import Delivery, Failure
from logd.client.spool import Spool
from logd.client.unacked import NEVER_ACCEPTED, TRY_LATER, UnackedBatch
from logd.errors import BY_CODE, BadRequest, Conflict, LogdError, NoSpace, OutOfOrder
from logd.storage.producers import Producers, StoredId
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import Pushed
from logd.wire.requests import Push
from logd.wire.topic_identity import TopicIdentity

RECOVERABLE = sorted(kind.code for kind in (*TRY_LATER, *NEVER_ACCEPTED))
CUT = ConnectionLost("it was cut")


def batch(n: int = 0) -> UnackedBatch:
    body = b"%d\n" % n
    return UnackedBatch(Push("app", body, sum=body_sum(body)), 1)


class Program:
    """A delivery, its clock, and everything that it tells the program."""

    def __init__(self, *, hears_refusals: bool = True, **options: Any) -> None:
        self.now_s = 100.0
        self.refused: list[LogdError] = []
        self.losses: list[str] = []
        given = {"spool": None, "producer": None, "max_in_flight": 16, "patience_s": 60.0}
        self.delivery = Delivery(
            "app", "host:1", self.now_s, room_bytes=1 << 20,
            on_loss=lambda loss: self.losses.append(loss.reason),
            on_refused=(lambda _, error: self.refused.append(error)) if hears_refusals else None,
            **given | options,
        )  # fmt: skip

    def add(self, *batches: UnackedBatch) -> None:
        for one in batches:
            self.delivery.add(one, self.now_s)

    def send(self) -> list[str]:
        """Send all that may be sent now; the ids."""
        return [push.id for push in iter(self.delivery.next_push, None)]

    def answer(self, reply: Pushed | LogdError) -> None:
        self.delivery.answered(reply, self.now_s)
        self.call_back()

    def connect(self, identity: TopicIdentity | None) -> None:
        self.delivery.connected(identity)
        self.call_back()

    def cut(self, error: Failure = CUT) -> None:
        self.delivery.disconnected(error, self.now_s)
        self.call_back()

    def advance(self, now_s: float) -> None:
        self.now_s = now_s
        self.delivery.advance(now_s)
        self.call_back()

    def wait(self) -> None:
        """Until the pause is over, if there is one."""
        self.advance(max(self.now_s, self.delivery.retry_at_s))

    def call_back(self) -> None:
        for callback in self.delivery.take_callbacks():
            callback()


# -- whatever happens -----------------------------------------------------------------------------


class Model:
    """A server with the real rules for ids, and both directions of a connection to it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes]] = []  # id and body of what it has stored
        self.bodies: dict[str, bytes] = {}  # of each id that it ever received
        self.producers = Producers()
        self.asked: deque[Push] = deque()
        self.replies: deque[Pushed | LogdError] = deque()

    def receive(self, push: Push) -> None:
        body = bytes(push.body)
        assert self.bodies.setdefault(push.id, body) == body, "two bodies with one id"
        self.asked.append(push)

    def execute(self, code: str | None = None) -> None:
        """The oldest push; refused if there is a code. What was stored once is never called bad."""
        if not self.asked:
            return
        push = self.asked.popleft()
        is_known = any(body == push.body for _, body in self.log)
        if code is not None and not (is_known and issubclass(BY_CODE[code], NEVER_ACCEPTED)):
            self.replies.append(BY_CODE[code]("told to"))
            if BY_CODE[code].closes:
                self.asked.clear()  # it receives nothing more
            return
        assert push.sum is not None
        try:
            place = self.producers.stored(push.id, push.sum)
        except LogdError as error:
            self.replies.append(error)
            return
        if place is None:
            place = StoredId(len(self.log), 1)
            self.producers.stage(push.id, place, push.sum)
            self.producers.commit()
            self.log.append((push.id, bytes(push.body)))
        self.replies.append(Pushed(*place))

    def crash(self, offset: int) -> list[bytes]:
        """A power cut: the newest batches are lost, and what was known of their ids."""
        gone = [body for _, body in self.log[offset:]]
        del self.log[offset:]
        self.producers = Producers()
        for i, (id_, body) in enumerate(self.log):
            self.producers.note(id_, i, 1, body_sum(body))
        return gone


class Future:
    """Keeps the result for a batch, and when it came."""

    def __init__(self, body: bytes, settled: list[bytes]) -> None:
        self._body, self._settled = body, settled
        self.error: Exception | None = None

    def done(self) -> bool:
        return self._body in self._settled

    def set_result(self, offset: int) -> None:
        self._settled.append(self._body)

    def set_exception(self, error: Exception) -> None:
        self.error = error
        self._settled.append(self._body)


class Run(Program):
    """A program and a model of the server, and what each batch's future said."""

    def __init__(self, max_in_flight: int) -> None:
        super().__init__(max_in_flight=max_in_flight, patience_s=None)
        self.model, self.max_in_flight = Model(), max_in_flight
        self.futures: list[Future] = []
        self.settled: list[bytes] = []
        self.gone: list[bytes] = []

    def add_one(self) -> None:
        one = batch(len(self.futures))
        self.futures.append(Future(bytes(one.push.body), self.settled))
        one.futures.append((0, self.futures[-1]))
        self.add(one)

    def send_some(self, most: int) -> None:
        for _ in range(most):
            push = self.delivery.next_push()
            if push is None:
                return
            self.model.receive(push)
            assert len(self.model.asked) + len(self.model.replies) <= self.max_in_flight

    def take_reply(self) -> None:
        if self.model.replies:
            self.answer(self.model.replies.popleft())
            assert self.delivery.failure is None

    def lose(self) -> None:
        self.model.asked.clear()
        self.model.replies.clear()
        self.cut()
        self.wait()

    def crash(self, keep: int) -> None:
        """What was never acknowledged is sent again anyway."""
        gone = self.model.crash(min(keep, len(self.model.log)))
        self.gone += [body for body in gone if body in self.settled]
        self.lose()

    def finish(self) -> None:
        for _ in range(10 * len(self.futures) + 100):
            self.wait()
            self.send_some(100)
            self.model.execute()
            self.take_reply()
            if self.delivery._unacked.in_flight and not (self.model.asked or self.model.replies):
                self.lose()  # the server closed the connection
        assert self.delivery.is_done

    def check(self) -> None:
        """Everything was stored once and in order, except what was refused or lost."""
        wanted = [b"%d\n" % n for n in range(len(self.futures))]
        assert self.settled == wanted
        refused = {wanted[n] for n, future in enumerate(self.futures) if future.error}
        assert len(refused) == len(self.refused)
        lost = refused | set(self.gone)
        assert [body for _, body in self.model.log] == [b for b in wanted if b not in lost]
        assert self.delivery.acknowledged == len(wanted) - len(refused)


class Round(NamedTuple):
    """Some of everything, in the order in which it can matter; then perhaps a fault."""

    added: int
    sent: int
    verdicts: list[str | None]  # of the pushes that arrived: None stores, a code refuses
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
def test_each_batch_is_stored_once_and_in_order(rounds: list[Round], max_in_flight: int) -> None:
    run = Run(max_in_flight)
    for added, sent, verdicts, answered, ending in rounds:
        for _ in range(added):
            run.add_one()
        run.send_some(sent)
        for verdict in verdicts:
            run.model.execute(verdict)
        for _ in range(answered):
            run.take_reply()
        if ending == -1:
            run.lose()
        elif ending is not None:
            run.crash(ending)
    run.finish()
    run.check()


# -- patience and pauses --------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [Pushed(0, 1), BadRequest("no")])
def test_patience_starts_with_the_first_batch_and_with_each_that_is_settled(
    reply: Pushed | LogdError,
) -> None:
    program = Program(patience_s=10.0)
    program.now_s = 200.0
    program.add(batch(), batch())
    program.advance(210.0)
    assert program.delivery.wake_at_s() == 210.0
    program.now_s = 209.0
    program.send()
    program.answer(reply)
    program.advance(219.0)
    assert program.delivery.failure is None
    program.advance(219.1)
    assert "did not answer in time" in str(program.delivery.failure)


def test_the_failure_is_the_newest_error() -> None:
    program = Program(patience_s=10.0)
    program.add(batch())
    for error in (ConnectionLost("reset"), newest := ConnectionLost("refused")):
        program.cut(error)
    assert program.delivery.trouble is newest
    program.advance(200.0)
    assert program.delivery.failure is newest
    program.delivery.fail(ConnectionLost("later"))
    assert program.delivery.failure is newest


def test_without_patience_it_never_fails() -> None:
    program = Program(patience_s=None)
    program.add(batch())
    program.advance(1e9)
    assert (program.delivery.failure, program.delivery.wake_at_s()) == (None, None)


def test_a_pause_that_ended_since_the_last_look_is_not_forgotten() -> None:
    program = Program(patience_s=None)
    program.add(batch())
    program.cut()
    first_s = program.delivery.retry_at_s
    assert not program.delivery.wants_connection(first_s - 0.001)
    assert program.delivery.wants_connection(first_s)
    assert program.delivery.wake_at_s() == first_s  # whatever the clock says now
    for _ in range(20):
        program.cut()
    assert LONGEST_S / 2 <= program.delivery.retry_at_s - program.now_s <= LONGEST_S


def test_patience_with_batches_in_a_spool_starts_with_the_writer(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(batch().push, 1)
    program = Program(spool=spool, patience_s=10.0)
    assert program.delivery.wake_at_s() == 110.0
    program.advance(110.0)
    assert program.delivery.failure is None
    spool.close()


def test_patience_does_not_count_the_time_of_a_full_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    program = Program(spool=spool, patience_s=10.0, memory_bytes=1 << 20)
    program.add(waiting := batch())
    program.advance(300.0)
    assert (program.delivery.failure, program.delivery.wake_at_s()) == (None, None)
    program.delivery.spooled(spool.append(waiting.push, 1), 300.0)
    assert program.delivery.wake_at_s() == 310.0
    spool.close()


def test_after_a_full_disk_nothing_is_sent_before_the_pause_is_over() -> None:
    program = Program()
    program.add(batch())
    program.send()
    program.answer(NoSpace("full"))
    assert program.send() == []
    program.wait()
    assert len(program.send()) == 1


# -- losses, refusals, the end --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "is_lost"),
    [
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 1, 0), False),
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 2, 1), False),
        (TopicIdentity("a", 1, 0), TopicIdentity("a", 2, 0), True),
        (TopicIdentity("a", 1, 0), TopicIdentity("b", 1, 0), True),
        (TopicIdentity("a", 1, 0), None, True),
        (None, TopicIdentity("a", 1, 0), False),
    ],
)
@pytest.mark.parametrize("connections", [1, 2])
def test_a_loss_is_reported_once(
    before: TopicIdentity | None, now: TopicIdentity | None, is_lost: bool, connections: int
) -> None:
    program = Program(producer="me", spool=None)
    program.delivery._unacked._is_shared = False
    program.add(batch(), batch())
    program.connect(before)
    program.send()
    program.answer(Pushed(0, 1))
    for _ in range(connections):
        program.cut()
        program.connect(now)
    assert program.delivery.trouble is None
    assert len(program.losses) == is_lost
    program.send()
    program.answer(OutOfOrder("last=0"))  # the same loss, by the number
    assert len(program.losses) == 1


def test_a_loss_after_another_is_reported_too() -> None:
    program = Program()
    program.add(*(batch(n) for n in range(5)))
    program.connect(TopicIdentity("a", 1, 0))
    for n in range(4):
        program.send()
        program.answer(Pushed(n, 1))
    for epoch, began in ((2, 3), (3, 1)):
        program.cut()
        program.connect(TopicIdentity("a", epoch, began))
    assert [loss.partition(" were")[0] for loss in program.losses] == [
        "offsets from 3 on",
        "offsets from 1 on",
    ]


@pytest.mark.parametrize(
    ("error", "losses", "fails"),
    [
        (BadRequest("no"), 0, True),
        (OutOfOrder("last=0"), 0, False),
        (Conflict("other"), 1, False),
        (LogdError("no"), 0, True),
    ],
)
def test_what_follows_from_each_error(
    error: LogdError, losses: int, fails: bool, tmp_path: Path
) -> None:
    spool = Spool(tmp_path)
    program = Program(hears_refusals=False, spool=spool)
    program.add(batch())
    program.send()
    program.answer(error)
    assert (len(program.losses), program.delivery.failure is not None) == (losses, fails)
    spool.close()


def test_a_refusal_that_the_program_hears_of_is_no_failure() -> None:
    program = Program()
    program.add(batch(), batch())
    program.send()
    program.answer(error := BadRequest("no"))
    assert program.refused == [error]
    assert program.delivery.failure is None
    assert len(program.send()) == 1


def test_a_failure_resolves_the_future_of_everything_that_is_waiting(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    program = Program(spool=spool, memory_bytes=1 << 20)
    settled: list[bytes] = []
    futures = [Future(b"%d" % n, settled) for n in range(3)]
    for n, future in enumerate(futures):
        one = batch(n)
        one.futures.append((0, future))
        program.add(one)
        if n < 2:  # the third is not in the spool yet
            number = spool.append(one.push, 1)
            program.delivery.spooled(number, program.now_s)
        if n == 0:
            program.send()  # and the second is only in the spool
    program.delivery.fail(CUT)
    program.call_back()
    assert [future.error for future in futures] == [CUT] * 3
    spool.close()


# -- the queue ------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_bytes", [0, 4])
def test_the_size_of_the_queue(tmp_path: Path, memory_bytes: int) -> None:
    """With a spool, also for a sender that appends later; an empty queue always has room."""
    spool = Spool(tmp_path)
    program = Program(spool=spool, memory_bytes=memory_bytes)
    delivery = program.delivery
    assert not delivery.is_full
    program.add(batch(1), batch(2))
    assert (delivery.last, delivery.is_done, delivery.is_settled(2)) == (2, False, False)
    assert delivery.is_full == bool(memory_bytes)
    while delivery.unspooled:
        waiting, note = delivery.unspooled[0]
        delivery.spooled(spool.append(waiting.push, 1, note), program.now_s)
    assert (delivery.last, delivery.is_full) == (2, False)
    for n in range(2):
        assert len(program.send()) == 1
        program.answer(Pushed(n, 1))
    assert (delivery.is_done, delivery.is_settled(2), delivery.has_unforgotten) == (True,) * 3
    delivery.forget_settled()
    assert spool.acknowledged == 2
    assert delivery.describe_queue() == "0 bytes are waiting to be stored in app"
    spool.close()


def test_a_batch_that_the_disk_refuses_can_be_taken_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    program = Program(spool=spool, memory_bytes=1 << 20)
    program.add(first := batch(1), batch(2))
    program.delivery.disk_error = OSError("full")
    assert program.delivery.is_full
    program.delivery.take_back(first)
    assert [bytes(one.push.body) for one, _ in program.delivery.unspooled] == [b"2\n"]
    assert program.delivery.last == 1
    spool.close()
