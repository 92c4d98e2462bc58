"""What each command does: requests in, typed replies out. TCP and HTTP both use it.

A push is answered through its `PendingPush`, every other command through a `Requester`, at once or
later; nothing here waits. A reply is a value: the listeners encode or render it. Imports neither
asyncio nor sockets.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from logd import __version__
from logd.access.access_file import Access
from logd.access.connection_limits import ConnectionLimits
from logd.access.rejection_log import RejectionLog
from logd.batch import SIZED, Buffer, body_sum, count_messages, inflate_to_store
from logd.config import Config
from logd.errors import (
    BadRequest,
    ChecksumMismatch,
    DamagedBatch,
    Faulted,
    Internal,
    LogdError,
    OutOfRange,
)
from logd.partition import Slice
from logd.storage.cursors import lag
from logd.storage.disk import NotCached, refusal
from logd.storage.periodic_tasks import PeriodicTasks
from logd.storage.readable_range import NewestWrite
from logd.storage.scheduler import Scheduler
from logd.storage.write_group import CheckedBatch, PendingPush
from logd.store import Store
from logd.topic import Topic
from logd.wire import requests
from logd.wire.commands import CursorInfo, PartitionInfo, TopicInfo
from logd.wire.requests import (
    Commit,
    Cursor,
    Follow,
    Push,
    Pushes,
    Read,
    RefusedRequest,
    Request,
    Tail,
)
from logd.wire.text import counted

SMALL_REPLY_BYTES = 64 * 1024  # read into memory; larger replies are sent from the files
_INLINE_CHECK_BYTES = 64 * 1024  # of a sized body: takes 0.1 ms, or 5 ms without a compiler
_MAX_WARM_TRIES = 400  # a reply may cover 64 files, each with several ranges that are not cached


class OkReply(NamedTuple):
    """Success without a result. `closes`: the client asked to end the connection."""

    closes: bool = False


class TextReply(NamedTuple):
    data: bytes


class StatsReply(NamedTuple):
    values: dict[str, Any]


class TableReply(NamedTuple):
    """One tuple of names and numbers per row."""

    rows: list[Any]


class BatchesReply(NamedTuple):
    """Whole batches: in `buffers` if they are small, otherwise as slices of files."""

    offset: int
    messages: int
    size: int
    buffers: Sequence[Buffer]
    slices: tuple[Slice, ...] = ()


class ErrorReply(NamedTuple):
    error: LogdError

    @property
    def closes(self) -> bool:
        return self.error.closes


Reply = OkReply | TextReply | StatsReply | TableReply | CursorInfo | BatchesReply | ErrorReply


class Requester(Protocol):
    """The sender of a command other than PUSH."""

    def reply(self, reply: Reply) -> None: ...
    def wait_for_messages(self, topic: Topic, offset: int, read: Read) -> None:
        """`topic` ends at `offset`: reply when it has more messages or the wait time is over."""

    def follow(self, topic: Topic, offset: int, request: Follow) -> None:
        """Send batches from `offset` on as they are stored."""


class Service:
    def __init__(self, store: Store, config: Config, scheduler: Scheduler) -> None:
        self.store = store
        self.config = config
        self.scheduler = scheduler
        self.connection_limits = ConnectionLimits(config, scheduler.monotonic_s)
        self.rejection_log = RejectionLog(scheduler.monotonic_s)
        self.periodic_tasks = PeriodicTasks(scheduler.monotonic_s)
        self.access: Access | None = None  # without one anybody may do everything
        self.started_at = time.time()
        self.counters = dict.fromkeys(("reads", "read_bytes", "refused"), 0)
        self._newest: tuple[NewestWrite | None, BatchesReply] = (None, BatchesReply(0, 0, 0, ()))
        self._commands: dict[type, Callable[[Any], Reply]] = {
            requests.Stats: self._stats,
            requests.Topics: self._topics,
            requests.Partitions: self._partitions,
            Cursor: self._cursor,
            requests.ConfigRequest: lambda request: TextReply(self.config.lines()),
            requests.Help: lambda request: TextReply(requests.HELP_TEXT),
            requests.Ping: lambda request: OkReply(),
            requests.Close: lambda request: OkReply(closes=True),
            requests.Auth: lambda request: OkReply(),  # the authorizer has checked the token
        }

    # -- pushes ---------------------------------------------------------------------------------

    def push(self, push: Pushes, pending: PendingPush) -> None:
        """Store consecutive plain pushes to one topic, which the parser has checked."""
        topic = self.store.topics.get(push.topic)
        if topic is not None:
            topic.push(pending)
        else:
            self._push(push.topic, pending)

    def push_batch(self, push: Push, pending: PendingPush) -> bool:
        """Check and store a push. False: a thread checks it, and later commands have to wait."""
        limit = self.config.max_batch_bytes
        is_large = push.enc == SIZED and len(push.body) > _INLINE_CHECK_BYTES
        if push.enc.endswith("+zstd") or is_large:
            self.scheduler.offload_cpu(
                lambda: _checked(push, limit), partial(self._push_checked, push, pending)
            )
            return False
        try:
            batch = _checked(push, limit)
        except LogdError as error:
            pending.refused(error)
        else:
            self._push_checked(push, pending, batch, None)
        return True

    def _push_checked(self, push: Push, pending: PendingPush, batch: Any, error: Any) -> None:
        if batch is not None:
            pending.content = batch
            self._push(push.topic, pending)
        else:
            failed = Internal(f"checking the push failed: {error}")
            pending.refused(error if isinstance(error, LogdError) else failed)

    def _push(self, topic: str, pending: PendingPush) -> None:
        try:
            self.store.topic_to_write(topic).push(pending)
        except LogdError as error:
            pending.refused(error)

    # -- other commands -------------------------------------------------------------------------

    def handle(self, request: Request, requester: Requester) -> None:
        """Execute a command other than PUSH. The reply comes now or later."""
        try:
            if isinstance(request, RefusedRequest):
                raise request.error
            if isinstance(request, Tail):
                request = self._tail(request)
            if isinstance(request, Read):
                self.read(request, requester)
            elif isinstance(request, Follow):
                self._follow(request, requester)
            elif isinstance(request, Commit):
                self._commit(request, requester)
            else:
                requester.reply(self._commands[type(request)](request))
        except (LogdError, OSError) as error:
            self.reject(refusal(error), requester)

    def reject(self, error: LogdError, requester: Requester) -> None:
        self.counters["refused"] += 1
        requester.reply(ErrorReply(error))

    # -- reading --------------------------------------------------------------------------------

    def read(self, read: Read, requester: Requester, tries: int = 0) -> None:
        """Find the batches and reply. Data that is not in the page cache is loaded off the loop."""
        try:
            topic = self.store.topic(read.topic)
            offset = topic.readable.resolve(read.where)
            if offset == topic.readable.next and read.wait_ms and not topic.closing:
                requester.wait_for_messages(topic, offset, read)
                return
            requester.reply(self._read_now(topic, offset, read))
        except NotCached as cold:
            self._warm(cold, partial(self.read, read), requester, tries)
        except DamagedBatch as error:
            self._reject_damage(error, topic, requester)
        except (LogdError, OSError) as error:
            self.reject(refusal(error), requester)

    def _read_now(self, topic: Topic, offset: int, read: Read) -> BatchesReply:
        plan = topic.readable.plan(offset, read.messages, self.max_bytes(read))
        size = sum(part.size for part in plan.slices)
        self.count_read(size)
        if size > SMALL_REPLY_BYTES:
            return BatchesReply(offset, plan.messages, size, (), tuple(plan.slices))
        buffers = [part.file.read(part.position, part.size) for part in plan.slices]
        return BatchesReply(offset, plan.messages, size, buffers)

    def newest_batches(self, newest: NewestWrite) -> BatchesReply:
        """The reply to readers that waited for this write: one object for all of them."""
        if self._newest[0] is not newest:
            self._newest = newest, BatchesReply(*newest)
        return self._newest[1]

    def max_bytes(self, read: Read) -> int:
        limit = self.config.max_reply_bytes
        return limit if read.max_bytes is None else max(1, min(read.max_bytes, limit))

    def count_read(self, size: int, replies: int = 1) -> None:
        self.counters["reads"] += replies
        self.counters["read_bytes"] += size

    def _reject_damage(self, error: DamagedBatch, topic: Topic, requester: Requester) -> None:
        reason = f"first={topic.readable.first} next={topic.readable.next} {error.text}"
        self.reject(Faulted(reason), requester)

    def _warm(
        self,
        cold: NotCached,
        again: Callable[[Requester, int], None],
        requester: Requester,
        tries: int,
    ) -> None:
        def done(_: Any, error: BaseException | None) -> None:
            if error is not None:
                self.reject(refusal(error), requester)
            elif tries >= _MAX_WARM_TRIES:
                error = Internal("the page cache evicts the data before it can be sent; retry")
                self.reject(error, requester)
            else:
                again(requester, tries + 1)

        self.scheduler.offload(cold.warm, done)

    def _follow(self, request: Follow, requester: Requester, tries: int = 0) -> None:
        try:
            topic = self.store.topic(request.topic)
            offset = topic.readable.resolve(request.where)
        except NotCached as cold:
            self._warm(cold, partial(self._follow, request), requester, tries)
        except DamagedBatch as error:
            self._reject_damage(error, topic, requester)
        except (LogdError, OSError) as error:
            self.reject(refusal(error), requester)
        else:
            requester.follow(topic, offset, request)

    def _tail(self, tail: Tail) -> Read:
        view = self.store.topic(tail.topic).readable
        start = max(view.first, view.next - tail.messages)
        return Read(tail.topic, start, tail.messages)

    def not_ready(self) -> list[str]:
        """Reasons why pushes would be refused now, and periodic tasks that fail."""
        return self.store.not_ready() + self.periodic_tasks.problems()

    # -- cursors --------------------------------------------------------------------------------

    def _cursor(self, request: Cursor) -> CursorInfo | TableReply:
        topic = self.store.topic(request.topic)
        if request.name is None:
            return TableReply(topic.cursors.rows(topic.readable.next))
        return _cursor_info(topic, topic.cursors.find(request.name).offset)

    def _commit(self, request: Commit, requester: Requester) -> None:
        """An offset below `first` is allowed: retention may have deleted what a reader has not
        read yet."""
        topic, offset = self.store.topic(request.topic), request.offset
        topic.check_files_are_there()
        if offset is not None and offset > topic.readable.next:
            raise OutOfRange(f"first={topic.readable.first} next={topic.readable.next}")

        def answer(error: LogdError | None) -> None:
            if error is not None:
                self.reject(error, requester)
            else:
                requester.reply(OkReply() if offset is None else _cursor_info(topic, offset))

        topic.cursors.commit(request.name, offset, answer)

    # -- topics and statistics ------------------------------------------------------------------

    def _topics(self, request: requests.Topics) -> TableReply:
        matches = re.compile(fnmatch.translate(request.glob)).match  # `fnmatch` caches 32,768
        return TableReply(
            [
                TopicInfo(name, view.first, view.next, view.size, len(view.partitions))
                for name, topic in sorted(self.store.topics.items())
                for view in (topic.readable,)
                if topic.ready and matches(name)
                if request.sees is None or request.sees(name)
            ]
        )

    def _partitions(self, request: requests.Partitions) -> TableReply:
        view = self.store.topic(request.topic).readable
        return TableReply(
            [
                PartitionInfo(one.first, *view.visible(one), one.min_time_ms, one.max_time_ms)
                for one in view.partitions.values()
            ]
        )

    def _stats(self, request: requests.Stats) -> StatsReply:
        if request.topic is not None:
            return StatsReply(self.store.topic(request.topic).stats())
        ready = [topic for topic in self.store.topics.values() if topic.ready]
        return StatsReply(
            {
                "version": __version__,
                "pid": os.getpid(),
                "uptime_s": int(time.time() - self.started_at),
                "fsync": self.config.fsync,
                "connections": self.connection_limits.open,
                "topics": len(ready),
                "faulted_topics": sum(bool(topic.damages) for topic in ready),
                "bytes": sum(topic.readable.size for topic in ready),
                "stored_messages": sum(topic.stored_messages for topic in ready),
                "stored_bytes": sum(topic.stored_bytes for topic in ready),
                **self.counters,
            }
        )


def _cursor_info(topic: Topic, offset: int) -> CursorInfo:
    return CursorInfo(offset, lag(offset, topic.readable.next))


def _checked(push: Push, limit_bytes: int) -> CheckedBatch:
    """The batch to store. Its body has the sum, the encoding and the count that the push names."""
    sum_ = body_sum(push.body)
    if push.sum is not None and push.sum != sum_:
        raise ChecksumMismatch(f"sum={push.sum}, but the body received has {sum_}; send it again")
    body, enc = push.body, push.enc
    if enc.endswith("+zstd"):
        body, enc = inflate_to_store(body, limit_bytes), enc.removesuffix("+zstd")
    messages = count_messages(body, enc)
    if push.messages is not None and push.messages != messages:
        raise BadRequest(
            f"count={push.messages}, but the body holds {counted(messages, 'message')}"
        )
    return CheckedBatch(push.body, push.enc, messages, sum_, push.id)
