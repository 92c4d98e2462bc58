"""Replies as a client takes them: bytes in, whole replies out, in order.

Sans I/O: receive into `room()`, say how much with `received()`, then `take()` what is complete. A
large body is received straight into its own buffer. What a reply claims is believed up to
`MAX_REPLY_BYTES`; an answer that is not the protocol raises `NotLogd`, and then the connection is
of no use any more.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from logd.errors import LogdError, from_code
from logd.wire.requests import quote

MAX_REPLY_BYTES = 1 << 30
MAX_REPLY_LINE_BYTES = 4096
_TLS_ALERT = b"\x15\x03"
_LINES_BYTES = 8192  # for reply lines; what of a body comes with them is copied once more

_REPLY = re.compile(
    rb"(OK)(?: ([0-9]{1,19}) ([0-9]{1,19}))?|(TEXT) ([0-9]{1,19})"
    rb"|(BATCHES) ([0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})"
)


class NotLogd(Exception):
    """What answers does not speak the protocol; `speaks` is HTTP or TLS if that is what it does."""

    def __init__(self, text: str, speaks: str = "") -> None:
        super().__init__(text)
        self.speaks = speaks


class ReceivedReply(NamedTuple):
    """A reply's word, its numbers, and the bytes behind its first line."""

    word: str
    numbers: tuple[int, ...]
    body: bytearray


class Replies:
    def __init__(self) -> None:
        self._lines = bytearray(_LINES_BYTES)
        self._start = self._end = 0  # what of it is received and not used up
        self._reply: ReceivedReply | None = None  # its body is not all here yet
        self._missing = 0

    def room(self) -> memoryview:
        """Where to receive to; never empty."""
        if self._reply is not None:
            return memoryview(self._reply.body)[-self._missing :]
        return memoryview(self._lines)[self._end :]

    def received(self, size: int) -> None:
        if self._reply is not None:
            self._missing -= size
        else:
            self._end += size

    def take(self) -> ReceivedReply | LogdError | None:
        """The next whole reply, the error that an ERR line carries, or None: receive more."""
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
        """Is nothing of a reply here that has not been taken?"""
        return self._reply is None and self._start == self._end

    def _begun(self) -> ReceivedReply | LogdError | None:
        """The reply whose first line is here, with as much of its body as came along."""
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
        return reply

    def _make_room(self) -> None:
        unfinished = self._lines[self._start : self._end]
        if unfinished.startswith(_TLS_ALERT):
            raise NotLogd("it answered with an alert of TLS", "TLS")
        if len(unfinished) > MAX_REPLY_LINE_BYTES:
            raise NotLogd("its reply has no end of line")
        self._lines[: len(unfinished)] = unfinished
        self._start, self._end = 0, len(unfinished)


def parse_reply(line: bytes) -> ReceivedReply | LogdError:
    """A reply's first line, its end included: with room for its body, or the error it carries."""
    head = parse_head(line)
    if isinstance(head, LogdError):
        return head
    word, numbers = head
    return ReceivedReply(word, numbers, bytearray(0 if word == "OK" else numbers[-1]))


def parse_head(line: bytes) -> tuple[str, tuple[int, ...]] | LogdError:
    """The same without the room: the word and the numbers, the last one mostly the body's size."""
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
    if word != b"OK" and numbers[-1] > MAX_REPLY_BYTES:
        raise NotLogd(f"it announced a reply of {numbers[-1]} bytes")
    return word.decode(), numbers
