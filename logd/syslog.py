"""Syslog over TCP: RFC 5424 or RFC 3164, octet-counted or terminated by LF or NUL (RFC 6587).

Off unless `syslog-host` is set. Each frame is one message of the topic `syslog-topic`, as it came;
nothing is parsed away. Syslog over TCP has no acknowledgement: what a sender had written when
either side died may be lost, and it will not know. Here a sender is read from only as fast as its
frames are stored, so a stop or a full disk holds it back rather than losing what it sends.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from typing import Any, cast

from logd.admission import Entry
from logd.batch import body_sum, encode_body
from logd.errors import LogdError
from logd.group import Batch
from logd.requests import Push, Pushes
from logd.service import Service
from logd.shown import counted
from logd.tls import HANDSHAKE_S, DoorContext, is_secure, peer_address

MAX_FRAME_BYTES = 64 * 1024
_RETRY_S = 0.5
_COUNT = re.compile(rb"([1-9][0-9]{0,6}) ")
_STARTS_COUNT = re.compile(rb"[1-9][0-9]{0,6}")
_BLANK = re.compile(rb"[\r\n\0]+")  # between records
_NEXT_LINE = re.compile(rb"\n<[0-9]{1,3}>")
_LOOKAHEAD_BYTES = 5  # of _NEXT_LINE that may be there before it matches
_log = logging.getLogger("logd")


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


class Sender(asyncio.Protocol):
    """A connection from a syslog sender: one batch on its way at a time, and then more is read."""

    clients = 1
    content: Pushes | Batch
    offset: int
    messages: int

    def __init__(self, service: Service, topic: str, senders: set[Sender]) -> None:
        self._service, self._topic, self._senders = service, topic, senders
        self._frames = Frames()
        self._push: Push | None = None
        self._eof = self._gone = False
        self.entry: Entry | None = None
        self.offset = self.messages = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._senders.add(self)
        address, secure = peer_address(transport), is_secure(transport)
        self.entry = self._service.admission.enter(address, had_turn=secure)
        if self.entry.refusal is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = True
        self._senders.discard(self)
        if self.entry is not None:
            self._service.admission.leave(self.entry)
        if self._frames.cut:
            frames = counted(self._frames.cut, "frame")
            _log.warning("syslog: %s cut at %d bytes", frames, MAX_FRAME_BYTES)

    def data_received(self, data: bytes) -> None:
        self._take(self._frames.feed(data))

    def eof_received(self) -> bool:
        self._eof = True
        self._take(self._frames.end())
        # Then it is closed when that is stored; TLS, which has no half-close, ends by itself.
        return self._push is not None and self._transport.can_write_eof()

    def _take(self, frames: list[bytes]) -> None:
        if frames:
            body, enc = encode_body(frames)
            self._push = Push(self._topic, body, enc, len(frames), body_sum(body))
            self._transport.pause_reading()
            self._store()

    def end(self) -> None:
        self._gone = True
        self._transport.pause_reading()
        if self._push is None:
            self._transport.close()
        else:
            self._eof = True

    def _store(self) -> None:
        if self._push is not None:
            self.content = Batch(b"", self._push.enc, 0, "")
            self._service.push_batch(self._push, self)

    def stored(self) -> None:
        self._push = None
        if self._eof:
            self._transport.close()
        elif not self._gone:
            self._transport.resume_reading()

    def refused(self, error: LogdError) -> None:
        """Not now: the sender waits. It cannot be told anything."""
        _log.warning("syslog: %s; trying again", error)
        self._service.scheduler.later(_RETRY_S, self._store)


class SyslogServer:
    def __init__(self, service: Service, topic: str, tls: DoorContext | None) -> None:
        self._service, self._topic, self._tls = service, topic, tls
        self._senders: set[Sender] = set()
        self._listener: asyncio.Server | None = None

    async def start(
        self, host: str, port: int, passed: socket.socket | None = None
    ) -> asyncio.Server:
        """Listen; `passed` does so already, and is used instead."""
        listening: dict[str, Any] = {"sock": passed} if passed else {"host": host, "port": port}
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Sender(self._service, self._topic, self._senders), backlog=1024,
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
