"""One connection of the line protocol: requests in, replies out in the same order.

Pushes may be under way side by side. Any other command starts when everything before it is
answered, and what follows it waits for its reply. The memory that a connection can make the daemon
hold is bounded: above that its socket is not read until it has been served. So is the time that it
can use at once: commands that arrive together are executed in turns of a few milliseconds.

The path of a request: `data_received` (in `storage.single_push`), `feed`, `receive`, `_start`; then
`answered` for a push and `reply` for any other command.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from logd.access.access_file import Grant, certificate_names
from logd.access.authorization import Authorizer
from logd.access.connection_limits import AdmittedConnection
from logd.batch import LINES
from logd.errors import LogdError, ShuttingDown
from logd.net.follow import Follower
from logd.net.large_bodies import LargeBodyReceiver
from logd.net.large_replies import HIGH_BYTES, BufferedSender, SendfileSender
from logd.net.long_poll import LongPoll
from logd.net.replies import OK_ONE, MixedRun, MixedSlot, PushSlot, ReplyEncoder, encode_head
from logd.net.request_turns import RequestTurns
from logd.net.tls import is_secure, peer_address
from logd.partition import Slice
from logd.protocol import Budget
from logd.service import (
    SMALL_REPLY_BYTES,
    BatchesReply,
    ErrorReply,
    OkReply,
    Reply,
    Service,
)
from logd.storage import single_read
from logd.storage.single_push import SinglePushConnection
from logd.storage.write_group import CheckedBatch
from logd.topic import Topic
from logd.wire.requests import Follow, Mixed, Push, Pushes, Read, RefusedRequest, Request

_MAX_IN_FLIGHT_BYTES = 2 << 20  # of unanswered pushes
_SLOT_BYTES = 500  # of memory per unanswered push, besides its body
_TURN_S = 0.005  # no command starts later in a turn
_LARGE_PIECE_BYTES = 16 << 10  # received at once: if a body continues after it, the body is large
_LINGER_S = 1.0
_UNCHECKED = CheckedBatch(b"", LINES, 0, "")
_SINGLE = Pushes("", [b""], None)
Sender = SendfileSender | BufferedSender
MakeSender = Callable[[asyncio.Transport, Callable[[], None]], Sender]


class ConnectionOwner(Protocol):
    """What all connections share."""

    service: Service
    budget: Budget
    encoder: ReplyEncoder
    open: set[Connection]
    now_s: float
    is_stopping: bool

    def authorizer(self, grant: Grant | None) -> Authorizer | None:
        """None if there is nothing to check."""


class Connection(SinglePushConnection, asyncio.Protocol):
    def __init__(self, owner: ConnectionOwner) -> None:
        super().__init__()
        self._owner, self._service = owner, owner.service
        self.client = ""  # its address
        self._admitted: AdmittedConnection | None = None
        self._can_switch_receiver = False
        self._in_flight_bytes = 0
        self._turn_ends_s = 0.0  # 0: no limit
        self._is_turn_due = False
        self._unsent: list[bytes] = []  # replies to pushes, some while others are unanswered
        self._is_flush_due = False
        self._single_reads: single_read.SingleReads | None = None
        self._long_poll: LongPoll | None = None
        self._follower: Follower | None = None
        self._sender: Sender | None = None
        self._is_advancing = False
        self._has_eof = False
        self._opened_at_s = self._active_at_s = self._unfinished_since_s = owner.now_s
        self._unfinished = 0  # the request that was unfinished at that time

    def open(
        self,
        transport: asyncio.Transport,
        client: str,
        authorizer: Authorizer | None,
        make_sender: MakeSender,
    ) -> None:
        """Serve `transport`: a socket, or the body and the response of an HTTP request."""
        self._transport, self._make_sender = transport, make_sender
        self.write, self.unwritten_bytes = transport.write, transport.get_write_buffer_size
        self.client = client
        max_batch_bytes = self._service.config.max_batch_bytes
        self.input = RequestTurns(self, max_batch_bytes, self._owner.budget, authorizer)
        self._owner.open.add(self)

    # -- called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=HIGH_BYTES)
        address, access, grant = peer_address(transport), self._service.access, None
        if access is not None:
            names = certificate_names(transport.get_extra_info("peercert"))
            grant = access.of_certificate(names)
        is_tls = is_secure(transport)
        if is_tls:
            make_sender: MakeSender = partial(BufferedSender, is_tls=True)
        else:
            make_sender = partial(SendfileSender, scheduler=self._service.scheduler)
            self.socket_fd = transport.get_extra_info("socket").fileno()
        self._can_switch_receiver = True
        self.open(transport, address, self._owner.authorizer(grant), make_sender)
        self._admit(self._service.connection_limits.enter(address, had_turn=is_tls))

    def _admit(self, admitted: AdmittedConnection) -> None:
        self._admitted = admitted
        refusal = admitted.refusal
        if refusal is not None and not admitted.is_answered:
            self._service.rejection_log.note(refusal, self.client)
            self.is_closing = True
            self._transport.abort()
        elif refusal is not None:
            self._service.reject(refusal, self)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closing = True
        self._owner.open.discard(self)
        if self._admitted is not None:
            self._service.connection_limits.leave(self._admitted)
        self.input.close()
        self.queue.clear()
        if self._long_poll is not None:
            self._long_poll.end()
            self._long_poll = None
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def eof_received(self) -> bool:
        if self.is_closing:
            return False
        self.reserve_single_slot()
        self._has_eof = True
        self._close_if_done()
        return self._transport.can_write_eof()  # TLS cannot: unanswered requests get no reply

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if self._sender is not None:
            self._sender.pause()
        self._control_reading()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.is_active = True
        if self._sender is not None:
            self._sender.resume()
        if self._follower is not None:
            self._follower.proceed()
        self.advance()

    # -- requests -------------------------------------------------------------------------------

    def feed(self, data: bytes | memoryview) -> None:
        if self.is_closing:
            return
        self.reserve_single_slot()
        self.input.feed(data)
        if self.input.unparsed:
            self._end_stream_before_queue()
            self._control_reading()
            self._parse_soon()
        if self.input.parser.repeatable is None:
            self.route = None
        else:
            self._update_route()
        self.reads = self._reads_of(self.input.repeatable_read)
        if self._can_switch_receiver and self._expects_large_body(len(data)):
            self._can_switch_receiver = False
            self._transport.pause_reading()
            self._transport.set_protocol(LargeBodyReceiver(self, self.input, self.feed))
            if not self.is_read_paused:
                self._transport.resume_reading()

    def _expects_large_body(self, received_bytes: int) -> bool:
        parser = self.input.parser
        is_large = received_bytes >= _LARGE_PIECE_BYTES and parser.room() is not None
        return is_large or parser.likely_bytes > 0

    def _update_route(self) -> None:
        """Let single pushes that follow use the fast path."""
        push = self.input.repeatable
        topic = self._service.store.topics.get(push.topic) if push is not None else None
        if push is None or topic is None:
            self.route = None
        else:
            self.add_route(push.prefix, push.max_bytes, topic.singles)

    def _reads_of(self, name: str | None) -> single_read.SingleReads | None:
        """The fast path of small reads that follow. Only if the parser has nothing unfinished:
        otherwise a body could be taken for a READ."""
        if name is None or self.socket_fd < 0 or not single_read.IS_AVAILABLE:
            return None
        if self._single_reads is None or self._single_reads.topic != name:
            topic = self._service.store.topics.get(name)
            if topic is None or self._service.config.max_reply_bytes < SMALL_REPLY_BYTES:
                return None
            counters = self._service.counters
            self._single_reads = single_read.SingleReads(name, topic.readable, counters)
        return self._single_reads

    def receive(self, requests: list[Request], size: int) -> None:
        """Start these requests, or queue them after those that wait."""
        self.is_active = True
        self._turn_ends_s = 0.0
        if len(requests) > 1:
            self._begin_turn()
        for request in requests:
            if self.queue or not self._start(request):
                self.queue.append(request)
        if self.slots:
            self._in_flight_bytes += size + _SLOT_BYTES * len(requests)
        if self.queue or self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES:
            self._control_reading()
            self._end_stream_before_queue()

    def _start(self, request: Request) -> bool:
        """Start a request, unless one before it has to be answered first."""
        if self.is_held or self.is_write_paused or self.is_ending:
            return False
        if isinstance(request, Pushes):
            slot = PushSlot(self, request)
            self.slots.append(slot)
            self._service.push(request, slot)
        elif isinstance(request, Mixed):
            mixed = MixedSlot(self, request)
            self.slots.append(mixed)
            for number, (topic, bodies) in enumerate(request.runs.items()):
                run = Pushes(topic, bodies, None)
                self._service.push(run, MixedRun(mixed, number, run))
        elif isinstance(request, Push):
            slot = PushSlot(self, _UNCHECKED)
            self.slots.append(slot)
            if not self._service.push_batch(request, slot):
                self.is_held = slot.holds = True
        elif self.slots or (self._turn_ends_s and self._is_turn_over()):
            return False
        else:
            self.is_held = True
            self._service.handle(request, self)
        return True

    def advance(self) -> None:
        """Start the requests in the queue that can start now."""
        if self._is_advancing or self.is_closing:
            return
        if not (
            self.queue or self.input.unparsed or self.is_read_paused or self.is_write_paused
            or self._has_eof or self.is_ending or self._owner.is_stopping
        ):  # fmt: skip
            return  # after most replies there is nothing to do
        self._is_advancing = True
        if self.queue:
            self._begin_turn()
        while self.queue and self._start(self.queue[0]):
            if self.queue:  # a reply that closes the connection empties it
                self.queue.popleft()
        self._is_advancing = False
        if not self.is_closing:
            self._end_stream_before_queue()
            self._control_reading()
            self._parse_soon()
            self._close_if_done()

    def _control_reading(self) -> None:
        """Read from the socket only while everything received has been started."""
        is_over = self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES or self.is_write_paused
        is_full = bool(self.queue or self.input.unparsed or is_over or self._owner.is_stopping)
        if is_full != self.is_read_paused and not self.is_closing and not self._has_eof:
            self.is_read_paused = is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- turns ----------------------------------------------------------------------------------

    def _begin_turn(self) -> None:
        self._turn_ends_s = self._service.scheduler.monotonic_s() + _TURN_S

    def _is_turn_over(self) -> bool:
        if self._service.scheduler.monotonic_s() < self._turn_ends_s:
            return False
        self._next_turn_soon()
        return True

    def _next_turn_soon(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._service.scheduler.soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn_due = False
        if self.is_closing:
            return
        if self.queue:
            self.advance()
        elif self._may_parse():
            self.reserve_single_slot()
            self.input.parse_more()
            if self.input.unparsed:
                self._parse_soon()
            else:
                self.advance()

    def _parse_soon(self) -> None:
        if self._may_parse():
            self._next_turn_soon()

    def _may_parse(self) -> bool:
        is_blocked = self.queue or self.is_held or self.is_write_paused or self.is_ending
        is_full = self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES or self._owner.is_stopping
        return bool(self.input.unparsed) and not is_blocked and not is_full

    # -- replies to pushes ----------------------------------------------------------------------

    def make_single_slot(self) -> PushSlot:
        slot = PushSlot(self, _SINGLE)
        self.slots.append(slot)
        return slot

    def finish_single_reply(self, offset: int, sent: int) -> None:
        self.write((OK_ONE % offset)[sent:])

    def answered(self, slot: PushSlot | MixedSlot) -> None:
        """Send the replies that are next in order, in one call if possible."""
        slots, unsent = self.slots, self._unsent
        if slot.holds:
            self.is_held = False
        while slots and slots[0].reply is not None:
            unsent.append(slots.popleft().reply)
        if not slots:
            self._in_flight_bytes = 0
            self._flush()
        elif unsent and not self._is_flush_due:  # other topics may answer in this turn
            self._is_flush_due = True
            self._service.scheduler.soon(self._flush)
        if self.queue or self.is_read_paused or self._has_eof or self.is_ending:
            self.advance()

    def refused(self, error: LogdError, count: int) -> None:
        """Some errors close the connection, once everything before them is answered."""
        self._service.counters["refused"] += count
        self._service.rejection_log.note(error, self.client, count)
        if error.closes:
            self.is_ending = True
            self.queue.clear()

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._unsent and not self.is_closing:
            self._send(self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent))
        self._unsent.clear()

    def _send(self, data: bytes) -> None:
        """Directly to the socket if nothing is before it; what is left goes to the transport."""
        if self.socket_fd >= 0 and not self.unwritten_bytes():
            try:
                data = data[os.write(self.socket_fd, data) :]
            except OSError:
                pass  # the transport meets the error again
        if data:
            self.write(data)

    # -- replies to other commands --------------------------------------------------------------

    def reply(self, reply: Reply) -> None:
        """Send the reply to the command that holds the connection."""
        if self.is_closing:
            return
        if isinstance(reply, BatchesReply):
            if reply.slices:
                self.send_slices(encode_head(reply), reply.slices)
                return
            closes, data = False, self._owner.encoder.batches(reply)
        else:
            if isinstance(reply, ErrorReply):
                self._service.rejection_log.note(reply.error, self.client)
            closes = isinstance(reply, (OkReply, ErrorReply)) and reply.closes
            data = self._owner.encoder.encode(reply)
        self._send(data)
        self.is_held = False
        if closes:
            self._close_gently()
        else:
            self.advance()

    def send_slices(self, head: bytes, slices: tuple[Slice, ...]) -> None:
        if self._sender is None:
            self._sender = self._make_sender(self._transport, self._large_reply_sent)
            if self.is_write_paused:
                self._sender.pause()
        self._sender.send(head, slices)

    def _large_reply_sent(self) -> None:
        self.is_active = True
        if self._followed is not None and self._follower is not None:
            self._follower.sent()
        else:
            self.is_held = False
            self.advance()

    def wait_for_messages(self, topic: Topic, offset: int, read: Read) -> None:
        if not self.is_closing:
            if self._long_poll is None:
                self._long_poll = LongPoll(self._service, self)
            self._long_poll.begin(topic, offset, read)

    @property
    def _waiting_read(self) -> Read | None:
        return self._long_poll.read if self._long_poll is not None else None

    # -- following ------------------------------------------------------------------------------

    def follow(self, topic: Topic, offset: int, request: Follow) -> None:
        if not self.is_closing:
            if self.input.authorizer is not None:  # its rights may have changed since it was parsed
                checked = self.input.authorizer.admit_again([request, *self.queue])[0]
                if isinstance(checked, RefusedRequest):
                    self._service.reject(checked.error, self)
                    return
            if self._follower is None:
                self._follower = Follower(self, self._service, self._owner.encoder)
            self._follower.begin(topic, offset, request)

    @property
    def _followed(self) -> Follow | None:
        return self._follower.request if self._follower is not None else None

    def _end_stream_before_queue(self) -> None:
        """The next command ends a stream."""
        if self._followed is not None and (self.queue or self.input.unparsed):
            assert self._follower is not None
            self._follower.end()

    def end_stream(self, last: bytes) -> None:
        self._send(last)
        self._service.scheduler.soon(self._stream_ended)  # a client may send many FOLLOWs at once

    def _stream_ended(self) -> None:
        if not self.is_closing:
            self.is_held = False
            self.advance()

    # -- timeouts, reload, end ------------------------------------------------------------------

    def check(self, now_s: float) -> bool:
        """Abort the connection if it is idle or slow for too long. True: it is a follower that
        waits for messages, to which no timeout applies."""
        config, parser = self._service.config, self.input.parser
        if self._follower is not None and self._follower.is_idle and not parser.unfinished:
            self._active_at_s = self._unfinished_since_s = now_s
            self.is_active = True  # until it is checked again
            return True
        if self._sender is not None and self._sender.has_sent:
            self.is_active, self._sender.has_sent = True, False
        is_waiting = self._waiting_read is not None or (
            self._follower is not None and self._follower.is_idle
        )
        if self.is_active or self.slots or self.has_single or is_waiting:
            self.is_active, self._active_at_s = False, now_s
        if not parser.unfinished or parser.begun != self._unfinished or self.is_read_paused:
            self._unfinished, self._unfinished_since_s = parser.begun, now_s
        slow_s = now_s - self._unfinished_since_s
        if not self.input.is_authenticated:
            slow_s = max(slow_s, now_s - self._opened_at_s)
        if now_s - self._active_at_s > config.idle_timeout_s or slow_s > config.request_timeout_s:
            self._transport.abort()
        return False

    def reauthorize(self) -> None:
        """The access file was reloaded: check again what has not been executed yet."""
        self._single_reads = None
        self.remove_routes()
        if not self.input.reauthorize(self._service):
            self.end()
            return
        if self.input.authorizer is None:
            return
        held = self._waiting_read or self._followed
        if held is not None:
            self.queue.appendleft(held)
        self.queue = deque(self.input.authorizer.admit_again(self.queue))
        if held is not None:
            checked = self.queue.popleft()
            if isinstance(checked, RefusedRequest):
                self._refuse_held(checked.error)

    def _refuse_held(self, error: LogdError) -> None:
        """The right to read was revoked during a READ that waits or a FOLLOW."""
        if self._followed is not None and self._follower is not None:
            self._service.counters["refused"] += 1
            self._follower.end(error)
        elif self._long_poll is not None:
            self._long_poll.end()
            self._service.reject(error, self)

    def stop(self) -> None:
        """The daemon is stopping: reject the requests that have not started."""
        if self.queue or self.input.unparsed:
            error = ShuttingDown("the daemon is stopping; connect again in a moment", closes=True)
            self.queue = deque([RefusedRequest(error)])
        if not self.is_closing:
            self._transport.pause_reading()
            self.is_read_paused = True
            if self._follower is not None:
                self._follower.end()
            self.advance()

    def is_finished(self) -> bool:
        is_busy = self.queue or self.input.unparsed or self.slots or self.has_single or self.is_held
        return self.is_closing or not is_busy

    def end(self) -> None:
        """Close the connection. An incomplete reply must not look like a complete one."""
        self.is_closing = True
        if self._follower is not None:
            self._follower.close()  # the transport may be open until the client has read its reply
        if self._sender is not None and self._sender.is_sending:
            self._transport.abort()
        else:
            self._transport.close()

    def _close_if_done(self) -> None:
        if self.is_ending and not self.slots and not self.is_closing:
            self._close_gently()
        elif self._has_eof and self.is_finished():
            self.is_closing = True
            self._transport.close()

    def _close_gently(self) -> None:
        """Send the last reply, and ignore input for a moment: a reset could discard the reply."""
        self.is_closing = self.is_held = True
        self.queue.clear()
        self.input.discard()
        if self.is_read_paused:
            self._transport.resume_reading()
        if self._has_eof:
            self._transport.close()
        else:
            if self._transport.can_write_eof():  # TLS cannot
                self._transport.write_eof()
            self._service.scheduler.later(_LINGER_S, self._transport.close)
