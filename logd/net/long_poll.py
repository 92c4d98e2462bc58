"""A READ that waits for messages, until there are some or its time is over.

A follower sends its next READ as soon as it has a message, and rarely waits in vain. So a
connection uses one `LongPoll` for all its reads, and one timer: a timer that fires before the
current wait is over is set again.
"""

from __future__ import annotations

from logd.service import SMALL_REPLY_BYTES, Requester, Service
from logd.storage.scheduler import Timer
from logd.topic import Topic
from logd.wire.requests import Read


class LongPoll:
    __slots__ = (
        "_call", "_fires_at_s", "_offset", "_read", "_requester", "_service", "_timer", "_topic",
        "_until_s",
    )  # fmt: skip

    def __init__(self, service: Service, requester: Requester) -> None:
        self._service, self._requester = service, requester
        self._topic: Topic | None = None
        self._timer: Timer | None = None
        self._fires_at_s = self._until_s = 0.0
        self._call = self._wake

    @property
    def read(self) -> Read | None:
        """The READ that is waiting."""
        return self._read if self._topic is not None else None

    def begin(self, topic: Topic, offset: int, read: Read) -> None:
        """Reply when `topic`, which ends at `offset`, has more messages."""
        self._topic, self._offset, self._read = topic, offset, read
        now_s, wait_s = self._service.scheduler.monotonic_s(), read.wait_ms / 1000
        self._until_s = now_s + wait_s
        if self._timer is None or self._until_s < self._fires_at_s:
            self._set_timer(wait_s)
        topic.waiting_readers.add(self, self._call)

    def end(self) -> None:
        """The client has disconnected: do not reply."""
        if self._topic is not None:
            self._topic.waiting_readers.remove(self)
            self._topic = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        """The topic has more messages or is closing, and has removed this from its waiters."""
        topic, self._topic = self._topic, None
        assert topic is not None
        newest = topic.waiting_readers.newest
        if (
            newest is None
            or newest.offset != self._offset
            or newest.messages > self._read.messages
            or newest.size > min(self._service.max_bytes(self._read), SMALL_REPLY_BYTES)
        ):
            self._read_now()
        else:  # exactly what was requested, and still in memory
            self._service.count_read(newest.size)  # first: the next command may be STATS
            self._requester.reply(self._service.newest_batches(newest))

    def _set_timer(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at_s = self._until_s
        self._timer = self._service.scheduler.later(wait_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        left_s = self._until_s - self._service.scheduler.monotonic_s()
        if self._topic is None:
            return
        if left_s > 0:
            self._set_timer(left_s)
        else:
            self._topic.waiting_readers.remove(self)
            self._topic = None
            self._read_now()

    def _read_now(self) -> None:
        self._service.read(self._read._replace(where=self._offset, wait_ms=0), self._requester)
