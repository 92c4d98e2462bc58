"""One object and one timer for all the READs of a connection that wait, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from logd.net.long_poll import LongPoll
from logd.service import SMALL_REPLY_BYTES, BatchesReply, Reply, Service
from logd.storage.readable_range import NewestWrite, WaitingReaders
from logd.topic import Topic
from logd.wire.requests import Follow, Read


class Clock:
    """The service, its scheduler and the timers it set, by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: dict[float, Callable[[], None]] = {}
        self.set = self.counted_bytes = 0
        self.limit_bytes = 200
        self.read_again: list[Read] = []
        self.scheduler = self

    def monotonic_s(self) -> float:
        return self.now_s

    def later(self, delay_s: float, call: Callable[[], None]) -> Any:
        clock, at_s = self, self.now_s + delay_s

        class Timer:
            def cancel(self) -> None:
                clock.timers.pop(at_s)

        assert at_s not in self.timers
        self.timers[at_s], self.set = call, self.set + 1
        return Timer()

    def pass_to(self, now_s: float) -> None:
        for at_s in sorted(at_s for at_s in self.timers if at_s <= now_s):
            self.now_s = at_s
            self.timers.pop(at_s)()
        self.now_s = now_s

    def newest_batches(self, newest: NewestWrite) -> BatchesReply:
        return BatchesReply(*newest)

    def count_read(self, size: int) -> None:
        self.counted_bytes += size

    def max_bytes(self, read: Read) -> int:
        return self.limit_bytes if read.max_bytes is None else read.max_bytes

    def read(self, read: Read, requester: Any) -> None:
        self.read_again.append(read)


class WaitingTopic:
    def __init__(self) -> None:
        self.waiting_readers = WaitingReaders()
        self.wake = self.waiting_readers.wake


class Follower:
    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def reply(self, reply: Reply) -> None:
        self.replies.append(reply)

    def wait_for_messages(self, topic: Topic, offset: int, read: Read) -> None:
        raise NotImplementedError

    def follow(self, topic: Topic, offset: int, request: Follow) -> None:
        raise NotImplementedError


class Scene:
    def __init__(self) -> None:
        self.clock, self.topic, self.follower = Clock(), WaitingTopic(), Follower()
        self.waiting = LongPoll(cast(Service, self.clock), self.follower)

    @property
    def is_waiting(self) -> bool:
        return self.waiting.read is not None

    def begin(self, offset: int, wait_ms: int, max_bytes: int | None = None) -> None:
        read = Read("app", "next", 5, max_bytes, wait_ms)
        self.waiting.begin(cast(Topic, self.topic), offset, read)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_who_is_woken_gets_what_is_fresh_and_the_timer_stays(scene: Scene) -> None:
    for offset in range(50):
        scene.begin(offset, 1000)
        assert scene.is_waiting
        scene.topic.wake(NewestWrite(offset, 5, 200, []))
        assert not scene.is_waiting
    assert scene.follower.replies == [BatchesReply(n, 5, 200, []) for n in range(50)]
    assert (scene.clock.set, scene.clock.counted_bytes) == (1, 50 * 200)


@pytest.mark.parametrize(
    ("fresh", "max_bytes"),
    [
        (None, None),
        (NewestWrite(6, 1, 100, []), None),  # another one: this topic was shown more at once
        (NewestWrite(7, 6, 100, []), None),
        (NewestWrite(7, 1, 201, []), None),
        (NewestWrite(7, 1, 100, []), 99),
        (NewestWrite(7, 1, SMALL_REPLY_BYTES + 1, []), 1 << 20),
    ],
)
def test_what_is_not_just_what_was_asked_for_is_read(
    scene: Scene, fresh: NewestWrite | None, max_bytes: int | None
) -> None:
    scene.begin(7, 1000, max_bytes)
    scene.topic.wake(fresh)
    assert scene.clock.read_again == [Read("app", 7, 5, max_bytes)]
    assert (scene.follower.replies, scene.clock.counted_bytes) == ([], 0)


def test_a_limit_that_was_lowered_meanwhile_holds(scene: Scene) -> None:
    scene.begin(7, 1000)
    scene.clock.limit_bytes = 99
    scene.topic.wake(NewestWrite(7, 1, 100, []))
    assert (scene.follower.replies, len(scene.clock.read_again)) == ([], 1)


def test_time_is_up_once_and_when_it_was_said(scene: Scene) -> None:
    scene.begin(7, 1000)
    scene.clock.pass_to(100.999)
    assert scene.is_waiting
    scene.clock.pass_to(101.0)
    assert (scene.is_waiting, len(scene.topic.waiting_readers.calls)) == (False, 0)
    assert scene.clock.read_again == [Read("app", 7, 5)]
    assert not scene.clock.timers


def test_a_timer_of_an_earlier_wait_rings_for_nobody_or_is_set_anew(scene: Scene) -> None:
    scene.begin(7, 1000)
    scene.topic.wake()
    scene.clock.pass_to(100.6)
    scene.begin(8, 1000)
    scene.clock.pass_to(101.599)  # the first wait's time is over, this one's is not
    assert (scene.is_waiting, len(scene.clock.read_again)) == (True, 1)
    scene.clock.pass_to(101.601)
    assert (scene.is_waiting, len(scene.clock.read_again)) == (False, 2)
    scene.begin(9, 1000)
    scene.topic.wake()
    scene.clock.pass_to(200.0)
    assert not scene.clock.timers


def test_a_shorter_wait_is_not_kept_by_a_longer_one(scene: Scene) -> None:
    scene.begin(7, 60_000)
    scene.topic.wake()
    scene.begin(8, 10)
    scene.clock.pass_to(100.011)
    assert scene.clock.read_again == [Read("app", 7, 5), Read("app", 8, 5)]
    assert not scene.clock.timers


@pytest.mark.parametrize("woken", [False, True])
def test_with_the_client_gone_nothing_is_left(scene: Scene, woken: bool) -> None:
    scene.begin(7, 1000)
    if woken:
        scene.topic.wake()
    scene.waiting.end()
    scene.waiting.end()
    assert (scene.is_waiting, len(scene.topic.waiting_readers.calls), len(scene.clock.timers)) == (
        False,
        0,
        0,
    )
