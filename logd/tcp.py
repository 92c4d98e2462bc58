"""Connections of the line protocol: bytes → parser → service → bytes and slices of files.

Always, per connection: replies come in the order of the requests. Pushes may be under way side by
side; any other command starts only when all before it are answered, and what follows it waits. What
a connection may make the daemon hold is bounded: past that it is not read from until it is served.
The same is true of the time that it may take at once: commands that were sent together are parsed
and carried out in turns of a few milliseconds, and other connections are served in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, cast

from logd.access.connection_limits import AdmittedConnection
from logd.batch import LINES
from logd.errors import LogdError, ShuttingDown
from logd.net.large_bodies import LargeBodyReceiver
from logd.net.long_poll import LongPoll
from logd.net.reply_encoding import ReplyEncoder, encode_head
from logd.net.reply_order import MixedSlot, PushSlot, ReplySlot, Run
from logd.net.sendfile import FileSender, send
from logd.net.tls import HANDSHAKE_S, ListenerContext, is_secure, peer_address
from logd.protocol import Budget, Parser
from logd.service import BatchesReply, ErrorReply, OkReply, Reply, Service
from logd.storage.periodic_tasks import for_each
from logd.storage.single_push import Express
from logd.storage.write_group import CheckedBatch
from logd.topic import Topic
from logd.wire.requests import Mixed, Push, Pushes, Read, RefusedRequest, Request

_MAX_IN_FLIGHT_BYTES = 2 << 20  # of pushes that one connection waits for
_SLOT_BYTES = 500  # that a push under way takes up, besides its body
_TURN_REQUESTS, _TURN_BYTES = 500, 64 << 10  # parsed at once: 1 to 3 ms
_TURN_S = 0.005  # for commands; one that has begun is finished
_BULKY_BYTES = 16 << 10  # in one piece, and a body still goes on behind it
HIGH_BYTES = 16 << 10  # of replies that a client does not take, beside the one that is too much
_LINGER_S = 1.0
_UNCHECKED = CheckedBatch(b"", LINES, 0, "")
_SINGLE = Pushes("", [b""], None)


class Connections:
    """All connections of the daemon, and what they share."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.budget = Budget(service.config.max_unfinished_bytes)
        self.tls: ListenerContext | None = None
        self.kinds: dict[tuple[bool, bool], type[Connection]] = {(False, False): Connection}
        self.open: set[Connection] = set()
        self.encoder = ReplyEncoder()
        self.now_s = service.scheduler.monotonic_s()
        self.stopping = False
        self.copying = 0  # large replies that go through memory

    @property
    def is_gated(self) -> bool:
        """Is there anything to check about what a connection asks?"""
        config = self.service.config
        return self.service.access is not None or config.max_topics_per_connection > 0

    def make(self) -> Connection:
        return self.kinds[self.tls is not None, self.is_gated](self)

    def sweep(self) -> None:
        """Once a second: close those that did nothing, or took too long, for too long."""
        self.now_s = self.service.scheduler.monotonic_s()
        for_each(list(self.open), lambda connection: connection.check(self.now_s))

    def stop(self) -> None:
        """Start no more commands; what is under way is answered."""
        self.stopping = True
        for connection in list(self.open):
            connection.stop()


class Connection(Express, asyncio.Protocol):
    def __init__(self, connections: Connections) -> None:
        service, config = connections.service, connections.service.config
        super().__init__()
        self.parser = Parser(config.max_batch_bytes, connections.budget)
        self._connections = connections
        self._service = service
        self.entry: AdmittedConnection | None = None
        self._in_flight_bytes = 0
        self._unparsed, self._unparsed_at = b"", 0  # received, and parsed up to there
        self._turn_ends_s = 0.0  # no command starts after it; 0 for no limit
        self._turn_is_due = False
        self._unsent: list[bytes] = []  # replies; some only while pushes are under way
        self._flush_is_due = False
        self._waiting: LongPoll | None = None
        self._sender: FileSender | None = None
        self._large: BatchesReply | None = None  # to be sent once the transport has nothing left
        self._advancing = False
        self._is_bulky = False
        self._eof = False
        self._active_at = connections.now_s
        self._unfinished_since = connections.now_s
        self._unfinished = 0  # which request that is about

    @property
    def client(self) -> str:
        """The address of the client, for the log."""
        return self.entry.address if self.entry is not None else ""

    # -- what the loop tells --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        self._write = self._transport.write
        self._unwritten = self._transport.get_write_buffer_size
        self._connections.open.add(self)
        address, secure = peer_address(transport), is_secure(transport)
        if not secure:
            self._socket = self._transport.get_extra_info("socket").fileno()
        self.entry = self._service.admission.enter(address, had_turn=secure)
        if self.entry.refusal is not None and not self.entry.is_answered:
            self._service.rejections.note(self.entry.refusal, address)
            self._closing = True
            self._transport.abort()
        elif self.entry.refusal is not None:
            self._service.reject(self.entry.refusal, self)

    def feed(self, data: bytes) -> None:
        if self._closing:
            return
        self._settle_single()
        if self._unparsed:
            self._unparsed += data
            return
        self._leave_unparsed(data, self.parse(data))
        self._prepare_singles()
        goes_on = len(data) >= _BULKY_BYTES and self.parser.room() is not None
        if (goes_on or self.parser.likely_bytes) and not self._is_bulky:
            self._is_bulky = True
            self._transport.pause_reading()
            self._transport.set_protocol(LargeBodyReceiver(self))
            if not self._read_is_paused:
                self._transport.resume_reading()

    def parse(self, data: bytes) -> int:
        """Take the requests in `data`; how many bytes at its end are left for the next turn."""
        requests = self.parser.feed(data, _TURN_REQUESTS)
        left = self.parser.unparsed_bytes
        self.received(requests, len(data) - left)
        return left

    def feed_large(self, data: memoryview) -> None:
        """From the second large push on; who may not push has not got here."""
        if self._unparsed:
            self.feed(bytes(data))
        elif not self._closing:
            self._settle_single()
            requests = self.parser.feed_large(data, _TURN_REQUESTS)
            left = self.parser.unparsed_bytes
            self.received(requests, len(data) - left)
            self._leave_unparsed(data, left)
            self._prepare_singles()

    def _leave_unparsed(self, data: bytes | memoryview, left: int) -> None:
        if left and not self._closing:
            self._unparsed = bytes(data[-left:])
            self._control_reading()
            self._parse_soon()

    def _parse_more(self) -> None:
        """A turn with what was left. Until all of it is parsed, nothing more is read."""
        self._settle_single()
        piece = self._unparsed[self._unparsed_at : self._unparsed_at + _TURN_BYTES]
        self._unparsed_at += len(piece) - self.parse(piece)
        if self._unparsed_at >= len(self._unparsed):
            self._unparsed, self._unparsed_at = b"", 0
            self._advance()
        else:
            self._parse_soon()

    def received(self, requests: list[Request], size: int) -> None:
        self._is_active = True
        self._turn_ends_s = 0.0
        if len(requests) > 1:
            self._begin_turn()
        for request in requests:
            if self._queue or not self._start(request):
                self._queue.append(request)
        if self._slots:
            self._in_flight_bytes += size + _SLOT_BYTES * len(requests)
        if self._queue or self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES:
            self._control_reading()

    def eof_received(self) -> bool:
        if self._closing:
            return False
        self._settle_single()
        self._eof = True
        self._end_if_done()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._connections.open.discard(self)
        if self.entry is not None:
            self._service.admission.leave(self.entry)
        self.parser.release()
        self._queue.clear()
        if self._waiting is not None:
            self._waiting.end()
        if self._sender is not None:
            self._sender.close()

    def pause_writing(self) -> None:
        self._write_is_paused = True
        self._control_reading()

    def resume_writing(self) -> None:
        self._write_is_paused = False
        self._is_active = True
        if self._large is not None:
            self._transport.set_write_buffer_limits(high=HIGH_BYTES)
            self._send_large()
        else:
            self._advance()

    # -- requests -------------------------------------------------------------------------------

    def _start(self, request: Request) -> bool:
        """Start one request, unless one before it has to be answered first."""
        if self._held or self._write_is_paused or self._ending:
            return False
        if isinstance(request, Pushes):
            slot = PushSlot(self, request)
            self._slots.append(slot)
            self._service.push(request, slot)
        elif isinstance(request, Mixed):
            mixed = MixedSlot(self, request)
            self._slots.append(mixed)
            for topic, bodies in request.runs.items():
                run = Pushes(topic, bodies, None)
                self._service.push(run, Run(mixed, run))
        elif isinstance(request, Push):
            slot = PushSlot(self, _UNCHECKED)
            self._slots.append(slot)
            if not self._service.push_batch(request, slot):
                self._held = slot.holds = True
        elif self._slots or (self._turn_ends_s and self._is_turn_over()):
            return False
        else:
            self._held = True
            self._service.handle(request, self)
        return True

    # -- turns ----------------------------------------------------------------------------------

    def _begin_turn(self) -> None:
        self._turn_ends_s = self._service.scheduler.monotonic_s() + _TURN_S

    def _is_turn_over(self) -> bool:
        if self._service.scheduler.monotonic_s() < self._turn_ends_s:
            return False
        self._next_turn_soon()
        return True

    def _next_turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._service.scheduler.soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_is_due = False
        if self._closing:
            return
        if self._queue:
            self._advance()
        elif self._may_parse():
            self._parse_more()

    def _may_parse(self) -> bool:
        """Is it time for what was received and not parsed yet?"""
        is_blocked = self._queue or self._held or self._write_is_paused or self._ending
        is_full = self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES or self._connections.stopping
        return bool(self._unparsed) and not is_blocked and not is_full

    def _parse_soon(self) -> None:
        if self._may_parse():
            self._next_turn_soon()

    def _prepare_singles(self) -> None:
        """What follows may be more single messages: they will know where to go."""
        again = self.parser.again
        topic = self._service.store.topics.get(again.topic) if again is not None else None
        if again is None or topic is None:
            self._again_singles = None
        else:
            self.show_way(again.prefix, again.most, topic.singles)

    def _slot_for_single(self) -> PushSlot:
        slot = PushSlot(self, _SINGLE)
        self._slots.append(slot)
        return slot

    def answered(self, slot: ReplySlot) -> None:
        """A push was answered: send what is now next in order, in one call with what follows it."""
        slots, unsent = self._slots, self._unsent
        if slot.holds:
            self._held = False
        while slots and slots[0].reply is not None:
            unsent.append(slots.popleft().reply)
        if not slots:
            self._in_flight_bytes = 0
            self._flush()
        elif unsent and not self._flush_is_due:  # other topics may answer more in this turn
            self._flush_is_due = True
            self._service.scheduler.soon(self._flush)
        if self._queue or self._read_is_paused or self._eof or self._ending:
            self._advance()

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._unsent and not self._closing:
            self._send(self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent))
        self._unsent.clear()

    def _send(self, data: bytes) -> None:
        """Now, and past the transport, as far as the socket takes it and nothing is before it."""
        if self._socket >= 0 and not self._unwritten():
            sent = send(self._socket, data)
            if sent == len(data):
                return
            data = data[sent:]
        self._write(data)

    def refused(self, error: LogdError, count: int) -> None:
        """Pushes were refused; some refusals end the connection, once all before is answered."""
        self._service.counters["refused"] += count
        self._service.rejections.note(error, self.client, count)
        if error.closes:
            self._ending = True
            self._queue.clear()

    def reply(self, reply: Reply) -> None:
        """The answer to a command that is not a push; it was the only one under way."""
        if self._closing:
            return
        closes = False
        if isinstance(reply, BatchesReply) and reply.slices:
            self._large = reply
            if self._transport.get_write_buffer_size() == 0:
                self._send_large()
            else:
                self._transport.set_write_buffer_limits(high=0)  # resume_writing tells when empty
            return
        if isinstance(reply, ErrorReply):
            self._service.rejections.note(reply.error, self.client)
            closes = reply.error.closes
        elif isinstance(reply, OkReply):
            closes = reply.closes
        self._send(self._connections.encoder.encode(reply))
        self._held = False
        if closes:
            self._close_gently()
        else:
            self._advance()

    def wait_for_messages(self, topic: Topic, offset: int, read: Read) -> None:
        """The command under way waits for messages; it ends with the connection."""
        if not self._closing:
            if self._waiting is None:
                self._waiting = LongPoll(self._service, self)
            self._waiting.begin(topic, offset, read)

    def _send_large(self) -> None:
        large, self._large = self._large, None
        assert large is not None
        if self._sender is None:
            fd = self._transport.get_extra_info("socket").fileno()
            self._sender = FileSender(fd, self._service.scheduler, self._transport.abort)
        self._sender.send(encode_head(large), large.slices, self._sent_large)

    def _sent_large(self) -> None:
        self._held = False
        self._is_active = True
        self._advance()

    def _advance(self) -> None:
        """Start what may start now of the requests that had to wait."""
        if self._advancing or self._closing:
            return
        self._advancing = True
        if self._queue:
            self._begin_turn()
        while self._queue and self._start(self._queue[0]):
            if self._queue:  # a closing reply empties it
                self._queue.popleft()
        self._advancing = False
        if not self._closing:
            self._control_reading()
            self._parse_soon()
            self._end_if_done()

    def _control_reading(self) -> None:
        is_over = self._in_flight_bytes > _MAX_IN_FLIGHT_BYTES or self._write_is_paused
        full = bool(self._queue or self._unparsed or is_over)
        full = full or self._connections.stopping
        if full != self._read_is_paused and not self._closing and not self._eof:
            self._read_is_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- the end --------------------------------------------------------------------------------

    def _end_if_done(self) -> None:
        if self._ending and not self._slots and not self._closing:
            self._close_gently()
        elif self._eof and not (self._queue or self._unparsed or self._slots or self._held):
            self._closing = True
            self._transport.close()

    def _close_gently(self) -> None:
        """Send what is to be sent, then nothing; swallow input for a moment, so that it arrives."""
        self._closing = self._held = True
        self._queue.clear()
        self._unparsed, self._unparsed_at = b"", 0
        self.parser.release()
        if self._read_is_paused:
            self._transport.resume_reading()
        if self._eof:
            self._transport.close()
        else:
            if self._transport.can_write_eof():  # TLS cannot
                self._transport.write_eof()
            self._service.scheduler.later(_LINGER_S, self._transport.close)

    def check(self, now_s: float) -> None:
        """Has this connection been idle, or busy with one request, for too long?"""
        config = self._service.config
        sent = self._sender is not None and self._sender.progressed()
        waits = self._waiting is not None and self._waiting.read is not None
        is_busy = self._slots or self._single_is_sent or waits
        if self._is_active or sent or is_busy:
            self._is_active = False
            self._active_at = now_s
        begun = self.parser.begun
        if not self.parser.unfinished or begun != self._unfinished or self._read_is_paused:
            self._unfinished, self._unfinished_since = begun, now_s
        idle_s, slow_s = now_s - self._active_at, now_s - self._unfinished_since
        if idle_s > config.idle_timeout_s or slow_s > config.request_timeout_s:
            self._transport.abort()

    def stop(self) -> None:
        """The daemon stops: refuse what has not been started."""
        if self._queue or self._unparsed:
            error = ShuttingDown("the daemon is stopping; connect again in a moment", closes=True)
            self._queue = deque([RefusedRequest(error)])
        if not self._closing:
            self._transport.pause_reading()
            self._read_is_paused = True
            self._advance()

    def finished(self) -> bool:
        is_busy = self._queue or self._unparsed or self._slots or self._single_is_sent or self._held
        return self._closing or not is_busy

    def end(self) -> None:
        self._closing = True
        self._transport.close()


def listen(
    loop: asyncio.AbstractEventLoop,
    connections: Connections,
    host: str,
    port: int,
    passed: socket.socket | None = None,
) -> Any:
    """`passed` listens already, and is used instead."""
    tls = connections.tls
    timeout_s = HANDSHAKE_S if tls is not None else None
    listening: dict[str, Any] = {"sock": passed} if passed else {"host": host, "port": port}
    return loop.create_server(
        connections.make, backlog=1024, ssl=tls, ssl_handshake_timeout=timeout_s, **listening
    )
