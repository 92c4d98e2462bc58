"""The syslog listener: RFC 5424 or RFC 3164 over TCP. Off unless `syslog-host` is set.

Each frame is stored unchanged as one message of the topic `syslog-topic`. Syslog over TCP has no
acknowledgement: what a sender had written when either side crashed may be lost without notice. A
sender is read only as fast as its frames are stored, so a stop or a full disk makes it wait and
loses nothing.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Iterable
from functools import partial
from typing import cast

from logd.access.connection_limits import AdmittedConnection
from logd.batch import body_sum, encode_body
from logd.errors import LogdError, NoSpace, TooLarge
from logd.net.syslog_frames import MAX_FRAME_BYTES, Frames
from logd.net.tls import ListenerContext, is_secure, listen, peer_address
from logd.service import Service
from logd.storage.periodic_tasks import for_each
from logd.storage.scheduler import Timer
from logd.storage.write_group import CheckedBatch
from logd.wire.requests import Push, Pushes
from logd.wire.text import counted

_RETRY_S = 0.5
_MAX_DEPARTED = 64  # closed connections whose records are not stored yet
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class SyslogConnection(asyncio.Protocol):
    """A connection of a syslog sender: it is read again when its last batch is stored."""

    clients = 1
    content: Pushes | CheckedBatch
    offset: int
    messages: int

    def __init__(self, service: Service, topic: str, senders: set[SyslogConnection]) -> None:
        self._service, self._topic, self._senders = service, topic, senders
        self._frames = Frames()
        self._push: Push | None = None
        self._eof = self._gone = False
        self._has_sent_record = False
        self._active_at_s = service.scheduler.monotonic_s()
        self._retry: Timer | None = None
        self.entry: AdmittedConnection | None = None
        self.address = ""
        self.offset = self.messages = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._senders.add(self)
        self.address, secure = peer_address(transport), is_secure(transport)
        limits = self._service.connection_limits
        self.entry = limits.enter(self.address, had_turn=secure, is_syslog=True)
        if self.entry.refusal is not None:
            self._service.rejection_log.note(self.entry.refusal, self.address)
            self._transport.abort()
        else:
            _keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
        self.leave()
        if self._push is None:
            self._senders.discard(self)
        if self._frames.cut:
            records = counted(self._frames.cut, "record")
            self._note(TooLarge(f"{records} truncated to {MAX_FRAME_BYTES} bytes"))

    def leave(self) -> None:
        """Make room for another connection. Records that are not stored yet are kept."""
        entry, self.entry = self.entry, None
        if entry is not None:
            self._service.connection_limits.leave(entry)

    def _note(self, error: LogdError) -> None:
        self._service.rejection_log.note(error, self.address)

    def data_received(self, data: bytes) -> None:
        self._active_at_s = self._service.scheduler.monotonic_s()
        self._take(self._frames.feed(data))

    def eof_received(self) -> bool:
        self._eof = True
        self._take(self._frames.end())
        # It is closed when that is stored. TLS has no half-close: the transport closes it now.
        return self._push is not None and self._transport.can_write_eof()

    def _take(self, frames: list[bytes]) -> None:
        if frames:
            self._has_sent_record = True
            body, enc = encode_body(frames)
            self._push = Push(self._topic, body, enc, len(frames), body_sum(body))
            self._transport.pause_reading()
            self._store()

    def end(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._transport.pause_reading()
        if self._push is None:
            self._transport.close()
        else:
            self._eof = True

    def _store(self) -> None:
        self._retry = None
        if self._push is not None:
            self.content = CheckedBatch(b"", self._push.enc, 0, "")
            self._service.push_batch(self._push, self)

    def stored(self) -> None:
        self._push = None
        if self._transport.is_closing():
            self._senders.discard(self)
        elif self._eof:
            self._transport.close()
        elif not self._gone:
            self._transport.resume_reading()

    def refused(self, error: LogdError) -> None:
        """Retry later. The sender waits; the protocol has no way to report an error."""
        self._note(error)
        if self._push is not None:
            self._retry = self._service.scheduler.later(_RETRY_S, self._store)

    # -- once per second ------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        """Of a connection that is not read, so that its end would not be noticed; otherwise -1."""
        if self._retry is None or self.entry is None:
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    def check(self, now_s: float) -> None:
        """Abort it if it is idle for too long and has sent no record, or others need its place."""
        limits, idle_s = self._service.connection_limits, now_s - self._active_at_s
        is_idle = self._push is None and idle_s > self._service.config.idle_timeout_s
        if is_idle and (not self._has_sent_record or limits.is_full_for_syslog):
            self._transport.abort()

    def drop(self) -> None:
        """Drop its records: too many senders have disconnected before theirs were stored."""
        if self._push is not None:
            records = counted(self._push.messages or 0, "record")
            self._note(NoSpace(f"{records} of a disconnected sender are lost"))
        if self._retry is not None:
            self._retry.cancel()
        self._push = self._retry = None
        self._senders.discard(self)
        self._transport.abort()


class SyslogServer:
    def __init__(self, service: Service, topic: str, tls: ListenerContext | None) -> None:
        self._service, self._topic, self._tls = service, topic, tls
        self._senders: set[SyslogConnection] = set()
        self._listener: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, passed: socket.socket | None = None
    ) -> asyncio.Server:
        make = partial(SyslogConnection, self._service, self._topic, self._senders)
        self._listener = await listen(make, self._tls, host, port, passed)
        return self._listener

    def stop(self) -> None:
        """Stop reading; batches under way are stored before the daemon exits."""
        if self._listener is not None:
            self._listener.close()
        for sender in list(self._senders):
            sender.end()

    def sweep(self, now_s: float) -> None:
        """Once per second: abort idle connections, and find those that have disconnected."""
        for_each(list(self._senders), lambda sender: sender.check(now_s))
        held_back = {sender.descriptor: sender for sender in self._senders}
        held_back.pop(-1, None)
        for descriptor in _disconnected(held_back):
            held_back[descriptor].leave()
        departed = [sender for sender in self._senders if sender.entry is None]
        for sender in departed[_MAX_DEPARTED:]:
            sender.drop()


def _disconnected(descriptors: Iterable[int]) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLRDHUP)
    return [descriptor for descriptor, _ in poll.poll(0)]


def _keep_alive(connection: socket.socket) -> None:
    """A sender may be idle for hours; one that is unreachable is detected within two minutes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
