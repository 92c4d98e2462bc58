"""Syslog over TCP: RFC 5424 or RFC 3164, octet-counted or terminated by LF or NUL (RFC 6587).

Off unless `syslog-host` is set. Each frame is one message of the topic `syslog-topic`, as it came;
nothing is parsed away. Syslog over TCP has no acknowledgement: what a sender had written when
either side died may be lost, and it will not know. Here a sender is read from only as fast as its
frames are stored, so a stop or a full disk holds it back rather than losing what it sends.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
from collections.abc import Iterable
from typing import Any, cast

from logd.access.connection_limits import AdmittedConnection
from logd.batch import body_sum, encode_body
from logd.errors import LogdError, NoSpace, TooLarge
from logd.net.tls import HANDSHAKE_S, ListenerContext, is_secure, peer_address
from logd.service import Service
from logd.storage.periodic_tasks import for_each
from logd.storage.scheduler import Timer
from logd.storage.write_group import CheckedBatch
from logd.wire.requests import Push, Pushes
from logd.wire.text import counted

MAX_FRAME_BYTES = 64 * 1024
_RETRY_S = 0.5
_MAX_DEPARTED = 64  # connections that have ended and whose records wait for the disk
_KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 60),
    (socket.TCP_KEEPINTVL, 15),
    (socket.TCP_KEEPCNT, 4),
)
_COUNT = re.compile(rb"([1-9][0-9]{0,6}) ")
_STARTS_COUNT = re.compile(rb"[1-9][0-9]{0,6}")
_BLANK = re.compile(rb"[\r\n\0]+")  # between records
_NEXT_LINE = re.compile(rb"\n<[0-9]{1,3}>")
_LOOKAHEAD_BYTES = 5  # of _NEXT_LINE that may be there before it matches


class Frames:
    """Split a byte stream into syslog records; the result does not depend on how it was cut.

    A record that starts with a number and a space is octet-counted. Any other ends at LF or NUL,
    whichever comes first. Once a NUL has ended a record, the sender terminates with NUL, as
    Python's SysLogHandler does, and LF is content from then on. A LF that is followed by the
    `<priority>` of another record shows that it does not after all.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.cut = 0  # records that were longer than MAX_FRAME_BYTES, and lost their end
        self._ends_with_nul = False
        self._searched_bytes = 0  # of the rest: no terminator begins in them
        self._skips_record = False
        self._skip_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        data, self._rest = self._rest + data, b""
        frames: list[bytes] = []
        at = 0
        while at < len(data):
            end = self._frame(data, at, frames)
            if end < 0:
                self._rest = data[at:]
                break
            at = end
        return frames

    def end(self) -> list[bytes]:
        """A last record may lack its terminator; an incomplete counted frame is dropped."""
        rest, self._rest = self._rest, b""
        if self._skips_record or _STARTS_COUNT.match(rest):
            return []
        record = _without_line_end(rest)
        return [record] if record else []

    def _frame(self, data: bytes, at: int, frames: list[bytes]) -> int:
        """Take one record at `at`; return where the next begins, or -1 if more data is needed."""
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data) - at)
            self._skip_bytes -= skipped
            return at + skipped
        if self._skips_record:
            return self._skip(data, at)
        if not self._searched_bytes:
            blank = _BLANK.match(data, at)
            if blank is not None:
                self._ends_with_nul |= b"\0" in blank[0]
                return blank.end()
            count = _COUNT.match(data, at)
            if count is not None:
                return self._counted(data, count, frames)
            if _STARTS_COUNT.fullmatch(data, at):
                return -1
        return self._terminated(data, at, frames)

    def _counted(self, data: bytes, count: re.Match[bytes], frames: list[bytes]) -> int:
        start, size = count.end(), int(count[1])
        kept = min(size, MAX_FRAME_BYTES)
        if len(data) - start < kept:
            return -1
        frames.append(data[start : start + kept].removesuffix(b"\n"))
        if kept < size:
            self.cut += 1
            self._skip_bytes = size - kept
        return start + kept

    def _terminated(self, data: bytes, at: int, frames: list[bytes]) -> int:
        end = self._terminator(data, at + self._searched_bytes)
        if end < 0 and len(data) - at <= MAX_FRAME_BYTES + _LOOKAHEAD_BYTES:
            self._searched_bytes = max(0, len(data) - at - _LOOKAHEAD_BYTES)
            return -1
        self._searched_bytes = 0
        record = data[at : end if end >= 0 else len(data)]
        if len(record) > MAX_FRAME_BYTES:
            self.cut += 1
            record = record[:MAX_FRAME_BYTES]
        record = _without_line_end(record)
        if record:
            frames.append(record)
        if end < 0:
            self._skips_record = True
            return len(data) - _LOOKAHEAD_BYTES
        return end + 1

    def _terminator(self, data: bytes, at: int) -> int:
        """Where the record ends, or -1; notes which terminator the sender uses."""
        end = data.find(b"\0", at)
        if not self._ends_with_nul:
            line_end = data.find(b"\n", at, end if end >= 0 else len(data))
            self._ends_with_nul = end >= 0 > line_end
            return line_end if line_end >= 0 else end
        next_record = _NEXT_LINE.search(data, at, end if end >= 0 else len(data))
        if next_record is None:
            return end
        self._ends_with_nul = False
        return next_record.start()

    def _skip(self, data: bytes, at: int) -> int:
        """Drop the rest of a record that was too long."""
        end = self._terminator(data, at)
        if end >= 0:
            self._skips_record = False
            return end + 1
        kept_from = len(data) - _LOOKAHEAD_BYTES
        return kept_from if kept_from > at else -1


def _without_line_end(record: bytes) -> bytes:
    return record.removesuffix(b"\n").removesuffix(b"\r")


class SyslogConnection(asyncio.Protocol):
    """A connection from a syslog sender: one batch at a time is stored, and then more is read."""

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
        admission = self._service.admission
        self.entry = admission.enter(self.address, had_turn=secure, is_syslog=True)
        if self.entry.refusal is not None:
            self._service.rejections.note(self.entry.refusal, self.address)
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
            self._note(TooLarge(f"{records} cut at {MAX_FRAME_BYTES} bytes"))

    def leave(self) -> None:
        """Give its place to another connection. Records that are not stored yet stay here."""
        entry, self.entry = self.entry, None
        if entry is not None:
            self._service.admission.leave(entry)

    def _note(self, error: LogdError) -> None:
        self._service.rejections.note(error, self.address)

    def data_received(self, data: bytes) -> None:
        self._active_at_s = self._service.scheduler.monotonic_s()
        self._take(self._frames.feed(data))

    def eof_received(self) -> bool:
        self._eof = True
        self._take(self._frames.end())
        # Then it is closed when that is stored; TLS, which has no half-close, ends by itself.
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
        """Not now: the sender waits. It cannot be told anything."""
        self._note(error)
        if self._push is not None:
            self._retry = self._service.scheduler.later(_RETRY_S, self._store)

    # -- once per second ------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        """Of a connection whose end would not be noticed, since it is not read from; else -1."""
        if self._retry is None or self.entry is None:
            return -1
        return int(self._transport.get_extra_info("socket").fileno())

    def check(self, now_s: float) -> None:
        """Close it if it is silent for too long: without a record so far, or with all in use."""
        admission, idle_s = self._service.admission, now_s - self._active_at_s
        is_idle = self._push is None and idle_s > self._service.config.idle_timeout_s
        if is_idle and (not self._has_sent_record or admission.is_full_for_syslog):
            self._transport.abort()

    def drop(self) -> None:
        """Too many have disconnected with records that cannot be stored now: lose these."""
        if self._push is not None:
            records = counted(self._push.messages or 0, "record")
            self._note(NoSpace(f"{records} of a sender that has disconnected are lost"))
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
        """Listen; `passed` does so already, and is used instead."""
        listening: dict[str, Any] = {"sock": passed} if passed else {"host": host, "port": port}
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: SyslogConnection(self._service, self._topic, self._senders), backlog=1024,
            ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S if self._tls is not None else None,
            **listening,
        )  # fmt: skip
        return self._listener

    def stop(self) -> None:
        """Read no more; what is on its way is stored with the rest of the stop."""
        if self._listener is not None:
            self._listener.close()
        for sender in list(self._senders):
            sender.end()

    def sweep(self, now_s: float) -> None:
        """Once per second: close silent connections, and notice those that have disconnected."""
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
    """A sender may be silent for hours; one whose machine is gone is noticed in two minutes."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
