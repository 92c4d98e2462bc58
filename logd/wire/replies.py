"""The parser of replies for clients: bytes in, complete replies out, in order.

No I/O: receive into `room()`, report the size with `received()`, then `take()` what is complete. A
large body is received directly into its own buffer. A reply may announce up to `MAX_REPLY_BYTES`.
Bytes that are not the protocol raise `NotLogd`; after that the connection cannot be used.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from logd.errors import LogdError, from_code
from logd.wire.requests import quote

MAX_REPLY_BYTES = 1 << 30
MAX_REPLY_LINE_BYTES = 4096
_TLS_ALERT = b"\x15\x03"
_LINES_BYTES = 8192  # for reply lines; the start of a body that arrives with them is copied

_REPLY = re.compile(
    rb"(OK)(?: ([0-9]{1,19}) ([0-9]{1,19}))?|(TEXT) ([0-9]{1,19})"
    rb"|(BATCHES) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})|(END) ([0-9]{1,19})"
)


class NotLogd(Exception):
    """The server does not speak the logd protocol; `speaks` is HTTP or TLS if it speaks that."""

    def __init__(self, text: str, speaks: str = "") -> None:
        super().__init__(text)
        self.speaks = speaks


class ReceivedReply(NamedTuple):
    """The word and the numbers of a reply, and the bytes after its first line."""

    word: str
    numbers: tuple[int, ...]
    body: bytearray


class Replies:
    def __init__(self) -> None:
        self._lines = bytearray(_LINES_BYTES)
        self._start = self._end = 0  # the part that is received and not used yet
        self._reply: ReceivedReply | None = None  # whose body is not complete
        self._missing = 0

    def room(self) -> memoryview:
        """The buffer to receive into; never empty."""
        if self._reply is not None:
            return memoryview(self._reply.body)[-self._missing :]
        return memoryview(self._lines)[self._end :]

    def received(self, size: int) -> None:
        if self._reply is not None:
            self._missing -= size
        else:
            self._end += size

    def take(self) -> ReceivedReply | LogdError | None:
        """The next complete reply or the error of an ERR line; None: receive more."""
        reply = self._reply or self._begun()
        if not isinstance(reply, ReceivedReply):
            return reply
        if self._missing:
            self._reply = reply
            return None
        self._reply = None
        return reply

    @property
    def is_between(self) -> bool:
        """Has every byte that was received been taken?"""
        return self._reply is None and self._start == self._end

    def _begun(self) -> ReceivedReply | LogdError | None:
        """The reply whose first line has arrived, with as much of its body as arrived with it."""
        end = self._lines.find(b"\n", self._start, self._end)
        if end < 0:
            self._make_room()
            return None
        line = bytes(self._lines[self._start : end + 1])
        self._start = end + 1
        reply = parse_reply(line)
        if isinstance(reply, ReceivedReply):
            size = len(reply.body)
            here = min(size, self._end - self._start)
            reply.body[:here] = self._lines[self._start : self._start + here]
            self._start += here
            self._missing = size - here
        if self._start == self._end:
            self._start = self._end = 0
        return reply

    def _make_room(self) -> None:
        unfinished = self._lines[self._start : self._end]
        if unfinished.startswith(_TLS_ALERT):
            raise NotLogd("it answered with a TLS alert", "TLS")
        if len(unfinished) > MAX_REPLY_LINE_BYTES:
            raise NotLogd("its reply has no end of line")
        self._lines[: len(unfinished)] = unfinished
        self._start, self._end = 0, len(unfinished)


def parse_reply(line: bytes) -> ReceivedReply | LogdError:
    """The first line of a reply, with its line end: with a buffer for the body, or an error."""
    line = line.rstrip(b"\r\n")
    if line.startswith(b"ERR "):
        code, _, text = line[4:].partition(b" ")
        return from_code(code.decode("ascii", "replace"), text.decode("ascii", "replace"))
    match = _REPLY.fullmatch(line)
    if match is None:
        speaks = "HTTP" if line.startswith(b"HTTP/") else ""
        speaks = "TLS" if line.startswith(_TLS_ALERT) else speaks
        raise NotLogd(f"it answered {quote(line)}", speaks)
    word, *rest = [group for group in match.groups() if group is not None]
    numbers = tuple(map(int, rest))
    size = 0 if word in (b"OK", b"END") else numbers[-1]
    if size > MAX_REPLY_BYTES:
        raise NotLogd(f"it announced a reply of {size} bytes")
    return ReceivedReply(word.decode(), numbers, bytearray(size))
