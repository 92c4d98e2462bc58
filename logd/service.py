"""From a request to its reply: the only place that knows what a command does.

TCP and HTTP both come through here. A reply is bytes, or a head line with slices of files that the
door sends as it likes. Nothing here waits: what cannot be answered at once is answered later,
through the `Door` that asked. Imports no asyncio and no sockets.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from logd.access.access_file import Access
from logd.access.connection_limits import ConnectionLimits
from logd.access.rejection_log import RejectionLog
from logd.batch import SIZED, body_sum, count_messages, inflate_to_store
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
from logd.storage.scheduler import Scheduler
from logd.storage.waiting_readers import NewestWrite
from logd.storage.write_group import CheckedBatch, PendingPush
from logd.store import Store
from logd.topic import Topic
from logd.wire.requests import (
    HELP_TEXT,
    Auth,
    Close,
    Commit,
    Cursor,
    Help,
    Partitions,
    Ping,
    Push,
    Pushes,
    Read,
    RefusedRequest,
    Request,
    Stats,
    Tail,
    Topics,
)
from logd.wire.requests import ConfigRequest as ConfigRequest
from logd.wire.text import counted

VERSION = "0.1.0"
SMALL_REPLY_BYTES = 64 * 1024  # read and sent as bytes; more goes from file to socket
_SIZES_AT_ONCE_BYTES = 64 * 1024  # of a sized body: 0.1 ms to check, and 5 ms without a compiler
_MAX_WARM_TRIES = 400  # a reply may touch 64 files, each in several cold places


class ServiceReply(NamedTuple):
    """`head` and, for a large READ, the slices that follow it; `closes` ends the connection.

    `error` is what `head` carries where the request was rejected.
    """

    head: bytes
    slices: tuple[Slice, ...] = ()
    closes: bool = False
    error: LogdError | None = None


class Requester(Protocol):
    """Whoever asked something other than a push."""

    def reply(self, reply: ServiceReply) -> None: ...
    def waits(self, topic: Topic, offset: int, read: Read) -> None:
        """`topic` ends at `offset`; see to it that this is answered when there is more."""


class Service:
    def __init__(self, store: Store, config: Config, scheduler: Scheduler) -> None:
        self.store = store
        self.config = config
        self.scheduler = scheduler
        self.admission = ConnectionLimits(config, scheduler.monotonic_s)
        self.rejections = RejectionLog(scheduler.monotonic_s)
        self.housekeeping = PeriodicTasks(scheduler.monotonic_s)
        self.access: Access | None = None  # without one anybody may do everything
        self.started_at = time.time()
        self.counters = dict.fromkeys(("reads", "read_bytes", "refused"), 0)
        self._shared: tuple[NewestWrite | None, ServiceReply] = (None, ServiceReply(b""))
        self._commands: dict[type, Callable[[Any], bytes]] = {
            Stats: self._stats,
            Topics: self._topics,
            Partitions: self._partitions,
            Cursor: self._cursor,
            ConfigRequest: lambda request: _text(self.config.lines()),
            Help: lambda request: _text(HELP_TEXT),
            Ping: lambda request: b"OK\r\n",
            Close: lambda request: b"OK\r\n",
            Auth: lambda request: b"OK\r\n",  # where it matters, the gate has looked at it
        }

    @property
    def connections(self) -> int:
        return self.admission.open

    # -- pushes ---------------------------------------------------------------------------------

    def push(self, push: Pushes, pending: PendingPush) -> None:
        """Store a run of plain pushes, which the parser has checked; `pending` hears of it."""
        topic = self.store.topics.get(push.topic)
        if topic is not None:
            topic.push(pending)
        else:
            self._push(push.topic, pending)

    def push_batch(self, push: Push, pending: PendingPush) -> bool:
        """Check a push and store it. False if that takes a while, and what follows it must wait."""
        limit = self.config.max_batch_bytes
        if push.enc.endswith("+zstd") or (
            push.enc == SIZED and len(push.body) > _SIZES_AT_ONCE_BYTES
        ):
            self.scheduler.offload_cpu(
                lambda: _checked(push, limit), partial(self._checked, push, pending)
            )
            return False
        try:
            batch = _checked(push, limit)
        except LogdError as error:
            self._checked(push, pending, None, error)
        else:
            self._checked(push, pending, batch, None)
        return True

    def _checked(
        self,
        push: Push,
        pending: PendingPush,
        batch: CheckedBatch | None,
        error: BaseException | None,
    ) -> None:
        if batch is not None:
            pending.content = batch
            self._push(push.topic, pending)
        else:
            pending.refused(
                error if isinstance(error, LogdError) else Internal(f"could not check: {error}")
            )

    def _push(self, topic: str, pending: PendingPush) -> None:
        try:
            self.store.topic_to_write(topic).push(pending)
        except LogdError as error:
            pending.refused(error)

    # -- everything else ------------------------------------------------------------------------

    def handle(self, request: Request, door: Requester) -> None:
        """Answer through `door`, now or later."""
        try:
            if isinstance(request, RefusedRequest):
                raise request.error
            if isinstance(request, Tail):
                request = self._tail(request)
            if isinstance(request, Read):
                self.read(request, door)
                return
            if isinstance(request, Commit):
                self._commit(request, door)
                return
            reply = self._commands[type(request)](request)
        except LogdError as error:
            self.refuse(error, door)
        except OSError as error:
            self.refuse(refusal(error), door)
        else:
            door.reply(ServiceReply(reply, closes=isinstance(request, Close)))

    def refuse(self, error: LogdError, door: Requester) -> None:
        self.counters["refused"] += 1
        door.reply(ServiceReply(error.line(), closes=error.closes, error=error))

    def read(self, read: Read, door: Requester, tries: int = 0) -> None:
        """READ: plan, then send; what is not in memory is fetched first, off the loop."""
        try:
            topic = self.store.topic(read.topic)
            offset = topic.readable.resolve(read.where)
            if offset == topic.readable.next and read.wait_ms and not topic.closing:
                door.waits(topic, offset, read)
                return
            door.reply(self._read_now(topic, offset, read))
        except NotCached as cold:
            self._warm(cold, read, door, tries)
        except DamagedBatch as error:
            reason = f"first={topic.readable.first} next={topic.readable.next} {error.text}"
            self.refuse(Faulted(reason), door)
        except OSError as error:
            self.refuse(refusal(error), door)
        except LogdError as error:
            self.refuse(error, door)

    def _read_now(self, topic: Topic, offset: int, read: Read) -> ServiceReply:
        plan = topic.readable.plan(offset, read.messages, self.max_bytes(read))
        size = sum(part.size for part in plan.slices)
        head = b"BATCHES %d %d %d\r\n" % (offset, plan.messages, size)
        self.count_read(size)
        if size > SMALL_REPLY_BYTES:
            return ServiceReply(head, tuple(plan.slices))
        parts = [part.file.read(part.position, part.size) for part in plan.slices]
        return ServiceReply(b"".join([head, *parts]))

    def fresh_reply(self, fresh: NewestWrite) -> ServiceReply:
        """For those who waited for what was just written: the first one's reply is everybody's."""
        if self._shared[0] is not fresh:
            head = b"BATCHES %d %d %d\r\n" % (fresh.offset, fresh.messages, fresh.size)
            self._shared = fresh, ServiceReply(b"".join([head, *fresh.buffers]))
        return self._shared[1]

    def max_bytes(self, read: Read) -> int:
        limit = self.config.max_reply_bytes
        return limit if read.max_bytes is None else max(1, min(read.max_bytes, limit))

    def count_read(self, size: int) -> None:
        self.counters["reads"] += 1
        self.counters["read_bytes"] += size

    def _warm(self, cold: NotCached, read: Read, door: Requester, tries: int) -> None:
        def done(_: Any, error: BaseException | None) -> None:
            if error is not None:
                self.refuse(refusal(error), door)
            elif tries >= _MAX_WARM_TRIES:
                self.refuse(Internal("the page cache does not hold what is read; retry"), door)
            else:
                self.read(read, door, tries + 1)

        self.scheduler.offload(cold.warm, done)

    def _tail(self, tail: Tail) -> Read:
        view = self.store.topic(tail.topic).readable
        start = max(view.first, view.next - tail.messages)
        return Read(tail.topic, start, tail.messages)

    def not_ready(self) -> list[str]:
        """Why pushes would be refused now, or what the daemon fails to look after."""
        return self.store.not_ready() + self.housekeeping.problems()

    # -- cursors --------------------------------------------------------------------------------

    def _cursor(self, request: Cursor) -> bytes:
        topic = self.store.topic(request.topic)
        if request.name is None:
            return _text("".join(topic.cursors.rows(topic.readable.next)).encode())
        return _place(topic, topic.cursors.find(request.name).offset)

    def _commit(self, request: Commit, door: Requester) -> None:
        """COMMIT: below first is allowed, since retention moves on under a slow reader."""
        topic, offset = self.store.topic(request.topic), request.offset
        topic.check_files_are_there()
        if offset is not None and offset > topic.readable.next:
            raise OutOfRange(f"first={topic.readable.first} next={topic.readable.next}")

        def answer(error: LogdError | None) -> None:
            if error is not None:
                self.refuse(error, door)
            else:
                door.reply(ServiceReply(b"OK\r\n" if offset is None else _place(topic, offset)))

        topic.cursors.commit(request.name, offset, answer)

    # -- text replies ---------------------------------------------------------------------------

    def _topics(self, request: Topics) -> bytes:
        matches = re.compile(fnmatch.translate(request.glob)).match  # `re` keeps few, not 32,768
        rows = [
            f"{name} {view.first} {view.next} {view.size} {len(view.partitions)}\n"
            for name, topic in sorted(self.store.topics.items())
            for view in (topic.readable,)
            if topic.ready and matches(name)
            if request.sees is None or request.sees(name)
        ]
        return _text("".join(rows).encode())

    def _partitions(self, request: Partitions) -> bytes:
        view = self.store.topic(request.topic).readable
        rows = []
        for partition in view.partitions.values():
            next_, size = view.visible(partition)
            rows.append(
                f"{partition.first} {next_} {size}"
                f" {partition.min_time_ms} {partition.max_time_ms}\n"
            )
        return _text("".join(rows).encode())

    def _stats(self, request: Stats) -> bytes:
        if request.topic is not None:
            return _text(_name_value(self.store.topic(request.topic).stats()))
        ready = [topic for topic in self.store.topics.values() if topic.ready]
        return _text(
            _name_value(
                {
                    "version": VERSION,
                    "pid": os.getpid(),
                    "uptime_s": int(time.time() - self.started_at),
                    "fsync": self.config.fsync,
                    "connections": self.connections,
                    "topics": len(ready),
                    "faulted_topics": sum(bool(topic.damages) for topic in ready),
                    "bytes": sum(topic.readable.size for topic in ready),
                    "stored_messages": sum(topic.stored_messages for topic in ready),
                    "stored_bytes": sum(topic.stored_bytes for topic in ready),
                    **self.counters,
                }
            )
        )


def _checked(push: Push, limit_bytes: int) -> CheckedBatch:
    """The batch to store, after its body was found to be what the push says it is."""
    sum_ = body_sum(push.body)
    if push.sum is not None and push.sum != sum_:
        raise ChecksumMismatch(f"sum={push.sum}, but the body that arrived has {sum_}; send again")
    body, enc = push.body, push.enc
    if enc.endswith("+zstd"):
        body, enc = inflate_to_store(body, limit_bytes), enc.removesuffix("+zstd")
    messages = count_messages(body, enc)
    if push.messages is not None and push.messages != messages:
        raise BadRequest(
            f"count={push.messages}, but the body holds {counted(messages, 'message')}"
        )
    return CheckedBatch(push.body, push.enc, messages, sum_, push.id)


def _place(topic: Topic, offset: int) -> bytes:
    return b"OK %d %d\r\n" % (offset, lag(offset, topic.readable.next))


def _text(body: bytes) -> bytes:
    return b"TEXT %d\r\n%s" % (len(body), body)


def _name_value(values: dict[str, Any]) -> bytes:
    return "".join(f"{name}: {value}\n" for name, value in values.items()).encode()
