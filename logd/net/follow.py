"""FOLLOW: replies that are sent as messages arrive, until the client sends another command.

A follower is an offset. At the end of its topic it is a member of the topic's `FollowerGroup`: a
write is encoded once and sent to all members by one call. A follower whose socket does not accept
a reply leaves the group, and the rest of the reply and everything after it is sent from the files,
one reply at a time, until it is at the end again. So a slow follower holds no messages in memory.
"""

from __future__ import annotations

import os
from typing import Protocol

from logd.batch import MAX_NUMBER
from logd.errors import LogdError
from logd.net.replies import ReplyEncoder, encode_batches, encode_head
from logd.partition import Slice
from logd.service import SMALL_REPLY_BYTES, BatchesReply, ErrorReply, Reply, Service
from logd.storage.disk import NotCached
from logd.storage.readable_range import NewestWrite
from logd.storage.scheduler import Timer
from logd.topic import Topic
from logd.wire.requests import Follow, Read

try:
    from logd._native import deliver
except ImportError:  # installed without a compiler

    def deliver(sockets: list[int], data: bytes, /) -> list[tuple[int, int]]:
        """Send `data` to each socket. Returns those that did not accept all of it, by index, with
        the number of bytes that they accepted."""
        left = []
        for i, socket in enumerate(sockets):
            try:
                sent = os.write(socket, data)
            except OSError:
                sent = 0  # if it is broken, the next attempt to send finds out
            if sent < len(data):
                left.append((i, sent))
        return left


HEARTBEAT_S = 15.0
_REPLY_BYTES = 1 << 20  # of one reply, unless the request has bytes=


class FollowingConnection(Protocol):
    """What a follower needs of its connection."""

    socket_fd: int  # -1: everything has to go through the transport
    is_write_paused: bool
    is_closing: bool
    is_active: bool  # since the last check of timeouts

    def write(self, data: bytes, /) -> object: ...
    def unwritten_bytes(self) -> int: ...
    def send_slices(self, head: bytes, slices: tuple[Slice, ...]) -> None:
        """Send from files, then call `Follower.sent`."""

    def end_stream(self, last: bytes) -> None:
        """Send the last line of the stream, then continue with the next command."""

    def reply(self, reply: Reply) -> None:
        """Send an error instead, and continue."""


class FollowerGroup:
    """The followers at the end of one topic; it exists while there are any."""

    def __init__(self, topic: Topic, service: Service, encoder: ReplyEncoder) -> None:
        self._topic, self._service, self._encoder = topic, service, encoder
        self._readers = topic.waiting_readers
        self.offset = topic.readable.next  # of all of them
        self._members: list[Follower] = []  # that are sent to directly
        self._sockets: list[int] = []  # theirs
        self._buffered: dict[Follower, None] = {}  # that are sent to through their transport
        self._sent_at_s = service.scheduler.monotonic_s()
        self._timer: Timer = service.scheduler.later(HEARTBEAT_S, self._beat)
        self._readers.group = self
        self._wait()

    @staticmethod
    def of(topic: Topic, service: Service, encoder: ReplyEncoder) -> FollowerGroup:
        group = topic.waiting_readers.group
        return group if isinstance(group, FollowerGroup) else FollowerGroup(topic, service, encoder)

    def add(self, follower: Follower) -> None:
        if follower.can_send_directly():
            follower.index = len(self._members)
            self._members.append(follower)
            self._sockets.append(follower.connection.socket_fd)
        else:
            self._buffered[follower] = None

    def remove(self, follower: Follower) -> None:
        follower.offset = self.offset
        follower.group = None
        if follower in self._buffered:
            del self._buffered[follower]
        else:
            last, socket = self._members.pop(), self._sockets.pop()
            if last is not follower:
                self._members[follower.index], self._sockets[follower.index] = last, socket
                last.index = follower.index
        if not self._members and not self._buffered:
            self._timer.cancel()
            self._readers.remove(self)
            self._readers.group = None

    def _wait(self) -> None:
        self._readers.add(self, self._wake)

    def _wake(self) -> None:
        """The topic has more messages, or is closing."""
        newest = self._readers.newest
        if newest is None or newest.offset != self.offset or self._topic.closing:
            newest = None if self._topic.closing else self._read()
        if newest is None or newest.size > SMALL_REPLY_BYTES:  # each on its own
            for follower in [*self._members, *self._buffered]:
                self.remove(follower)
                follower.proceed()
            return
        self._wait()
        data = encode_batches(newest.offset, newest.messages, newest.size, newest.buffers)
        self.offset = newest.offset + newest.messages
        self._sent_at_s = self._service.scheduler.monotonic_s()
        count = len(self._members) + len(self._buffered)
        self._service.count_read(newest.size * count, count)
        left = deliver(self._sockets, data)
        if left:
            for follower, sent in [(self._members[i], sent) for i, sent in left]:
                self.remove(follower)
                follower.send_rest(BatchesReply(*newest), data, sent)
        if self._buffered:
            for follower in list(self._buffered):
                self._send_buffered(follower, newest, data)

    def _read(self) -> NewestWrite | None:
        """What was written, for all followers; None if it is large or not in the page cache."""
        readable = self._topic.readable
        try:
            plan = readable.plan(self.offset, MAX_NUMBER, SMALL_REPLY_BYTES)
            size = sum(part.size for part in plan.slices)
            if size > SMALL_REPLY_BYTES or plan.offset + plan.messages != readable.next:
                return None
            buffers = [part.file.read(part.position, part.size) for part in plan.slices]
        except (LogdError, OSError, NotCached):
            return None
        return NewestWrite(plan.offset, plan.messages, size, buffers)

    def _send_buffered(self, follower: Follower, reply: NewestWrite, data: bytes) -> None:
        if reply.size > follower.max_bytes or follower.connection.is_write_paused:
            self.remove(follower)
            follower.offset = reply.offset
            self._service.count_read(-reply.size, -1)  # it is counted when it is sent
            follower.proceed()
            return
        follower.connection.write(data)
        if follower.can_send_directly():
            del self._buffered[follower]
            self.add(follower)

    def _beat(self) -> None:
        """Nothing was sent for a while: show that the connection is alive."""
        now_s = self._service.scheduler.monotonic_s()
        due_s = self._sent_at_s + HEARTBEAT_S - now_s
        if due_s <= 0:
            due_s, self._sent_at_s = HEARTBEAT_S, now_s
            data = encode_head(BatchesReply(self.offset, 0, 0, ()))
            for follower, sent in [(self._members[i], n) for i, n in deliver(self._sockets, data)]:
                follower.connection.write(data[sent:])  # a broken connection is noticed here
                self.remove(follower)
                follower.proceed()
            for follower in list(self._buffered):
                if not follower.connection.unwritten_bytes():
                    follower.connection.write(data)
        if self._members or self._buffered:
            self._timer = self._service.scheduler.later(due_s, self._beat)


class Follower:
    """The stream of one connection. `proceed` is called whenever something may have changed."""

    def __init__(
        self, connection: FollowingConnection, service: Service, encoder: ReplyEncoder
    ) -> None:
        self.connection, self._service, self._encoder = connection, service, encoder
        self.request: Follow | None = None  # while there is a stream
        self.group: FollowerGroup | None = None  # at the end of the topic
        self.index = 0  # in the group
        self.offset = 0  # the next to send; in a group, that of the group counts
        self.max_bytes = _REPLY_BYTES
        self._is_ending = self._is_busy = self._is_due = False
        self._error: LogdError | None = None

    @property
    def is_idle(self) -> bool:
        """Does it wait at the end of the topic?"""
        return self.group is not None

    def begin(self, topic: Topic, offset: int, request: Follow) -> None:
        self._topic, self.offset, self.request = topic, offset, request
        wanted = _REPLY_BYTES if request.max_bytes is None else request.max_bytes
        self.max_bytes = self._service.max_bytes(Read(request.topic, offset, 1, wanted))
        self._is_ending = self._is_busy = False
        self._error = None
        topic.waiting_readers.followers += 1
        self.proceed()

    def end(self, error: LogdError | None = None) -> None:
        """End the stream, with an error if there is one, after the reply that is being sent."""
        self._is_ending, self._error = True, self._error or error
        self._leave_group()
        self.proceed()

    def close(self) -> None:
        """The client has disconnected."""
        self._leave_group()
        self._ended()

    def proceed(self) -> None:
        """Send what is next; at the end of the topic join the other followers."""
        self._is_due = False
        connection = self.connection
        if self.request is None or self._is_busy or self.group is not None:
            return
        if connection.is_write_paused or connection.is_closing:
            return  # it is called again
        if self._error is not None:
            self._ended()
            connection.reply(ErrorReply(self._error))
        elif self._is_ending or self._topic.closing:
            self._ended()
            connection.end_stream(b"END %d\r\n" % self.offset)
        elif self.offset == self._topic.readable.next:
            group = FollowerGroup.of(self._topic, self._service, self._encoder)
            if group.offset == self.offset:
                self.group = group
                group.add(self)
            else:  # it is about to be woken for messages that this follower does not want
                self._proceed_soon()
        else:
            self._is_busy = True
            read = Read(self._topic.name, self.offset, MAX_NUMBER, self.max_bytes)
            self._service.read(read, self)

    def sent(self) -> None:
        """A reply was sent completely. Other connections come first, then the next one."""
        self._is_busy = False
        self._proceed_soon()

    def _proceed_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._service.scheduler.soon(self.proceed)

    # -- sending --------------------------------------------------------------------------------

    def can_send_directly(self) -> bool:
        connection = self.connection
        has_socket = connection.socket_fd >= 0 and self.max_bytes >= SMALL_REPLY_BYTES
        return has_socket and not connection.unwritten_bytes()

    def reply(self, reply: Reply) -> None:
        """What was read for this follower alone."""
        if self.request is None:
            return  # the client has disconnected meanwhile
        if self._is_ending:
            self.sent()
        elif isinstance(reply, ErrorReply):
            self._is_busy = False
            self.end(reply.error)
        else:
            assert isinstance(reply, BatchesReply)
            self.offset = reply.offset + reply.messages
            self.connection.is_active = True  # it has accepted everything before
            if reply.slices:
                self.connection.send_slices(encode_head(reply), reply.slices)
            else:
                self._send(reply)

    def _send(self, reply: BatchesReply) -> None:
        data, sent = self._encoder.batches(reply), 0
        if self.connection.socket_fd < 0 or self.connection.unwritten_bytes():
            self.connection.write(data)
            self.sent()
            return
        for _, sent in deliver([self.connection.socket_fd], data):
            self.send_rest(reply, data, sent)
            return
        self.sent()

    def send_rest(self, reply: BatchesReply, data: bytes, sent: int) -> None:
        """The socket has accepted only `sent` bytes: send the others from the file."""
        self._is_busy = True
        head = encode_head(reply)
        try:
            plan = self._topic.readable.plan(reply.offset, reply.messages, reply.size)
            slices = _without_start(plan.slices, max(0, sent - len(head)))
        except (LogdError, OSError, NotCached):
            slices = ()
        if sum(part.size for part in slices) == len(data) - max(sent, len(head)):
            try:
                self.connection.send_slices(head[sent:], slices)
                return
            except OSError:  # no descriptor is left; a sender handles all other errors
                pass
        self.connection.write(data[sent:])
        self.sent()

    def follow(self, topic: Topic, offset: int, request: Follow) -> None:
        raise NotImplementedError  # a follower only reads

    def wait_for_messages(self, topic: Topic, offset: int, read: Read) -> None:
        raise NotImplementedError

    def _leave_group(self) -> None:
        if self.group is not None:
            self.group.remove(self)

    def _ended(self) -> None:
        if self.request is not None:
            self.request = None
            self._topic.waiting_readers.followers -= 1


def _without_start(slices: list[Slice], size: int) -> tuple[Slice, ...]:
    """The slices without their first `size` bytes."""
    out = []
    for part in slices:
        skip = min(size, part.size)
        size -= skip
        if skip < part.size:
            out.append(Slice(part.file, part.position + skip, part.size - skip))
    return tuple(out)
