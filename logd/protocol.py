"""The line protocol as bytes: an incremental parser for requests.

Sans I/O: `Parser.feed` takes whatever arrived and returns the requests it completed, in order. What
cannot be accepted comes back as `Refused` in its place in that order, so that it is answered in
turn; after a refusal that closes the connection the parser swallows everything.

Always: the requests do not depend on how the bytes were cut into pieces (neighbouring plain pushes
are only grouped differently), and any bytes at all give requests or refusals, never an exception.
Memory held between two calls is at most one unfinished line and one unfinished body, and the
latter is paid for from a budget that all connections share.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from logd.batch import JOIN_BYTES, LINES, NO_ID, SMALL_BYTES, count_lf
from logd.errors import BadRequest, BadTopic, Busy, LogdError, TooLarge, UnknownCommand
from logd.requests import (
    COMMANDS,
    PUSH_OPTIONS,
    Push,
    Pushes,
    Refused,
    Request,
    number,
    options,
    quote,
    topic_name,
)

MAX_LINE_BYTES = 1024
MAX_ONE_LINE_BYTES = 64 * 1024

_PLAIN_PUSH = re.compile(rb"(?i:PUSH) ([A-Za-z0-9][A-Za-z0-9._-]{0,127}) ([0-9]{1,19})\r?\n")
_ONE_LINE_LIMIT = f"a one-line message is at most {MAX_ONE_LINE_BYTES} bytes"
_BUSY = "too many unfinished pushes are under way; retry"
_HTTP = re.compile(rb"[A-Za-z]+ \S+ HTTP/[0-9.]+|[A-Za-z-]+: ")


class Budget:
    """Bytes that the unfinished bodies of all connections may take up together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size: int) -> bool:
        if self.used_bytes + size > self.limit_bytes:
            return False
        self.used_bytes += size
        return True

    def give(self, size: int) -> None:
        self.used_bytes -= size


class Again(NamedTuple):
    """The last push, if it was plain and small and nothing is unfinished behind it.

    What comes next may be just like it, which `batch.one_more` tells without the parser.
    """

    topic: str
    line: bytes
    size: int  # of line and body


class Parser:
    """Bytes in, requests out. One per connection."""

    def __init__(self, max_batch_bytes: int, budget: Budget) -> None:
        self.closed = False
        self._max_batch_bytes = max_batch_bytes
        self._budget = budget
        self._state = self._in_commands
        self._rest = b""  # an unfinished command line
        self._body = bytearray()  # room for an unfinished body, or an unfinished one-line message
        self._push = Push("", b"")  # the push that body belongs to
        self._left = 0  # bytes of body still to come, or still to drop
        self.begun = 0
        self.again: Again | None = None

    def feed(self, data: bytes) -> list[Request]:
        self.again = None
        begins = not self.unfinished
        if self._rest:
            data, self._rest = self._rest + data, b""
        out: list[Request] = []
        position, end = 0, len(data)
        while position < end and not self.closed:
            position = self._state(data, position, out)
        if begins or out:
            self.begun += 1
        return out

    @property
    def unfinished(self) -> bool:
        """Is a command or a body only half here? `begun` then tells one such from another."""
        return bool(self._rest) or self._state != self._in_commands

    def release(self) -> None:
        """Give back what an unfinished body took from the budget. The connection is gone."""
        if self._state == self._in_body:
            self._budget.give(len(self._body) or self._left)
        elif self._state == self._in_one_line:
            self._budget.give(len(self._body))
        self._close()

    # Each state takes the bytes from `at` on and returns how far it got.

    def _in_commands(self, data: bytes, at: int, out: list[Request]) -> int:
        match = _PLAIN_PUSH.match(data, at)
        if match is not None:
            return self._plain_pushes(match, data, out)
        end = data.find(b"\n", at, at + MAX_LINE_BYTES + 2)
        if end < 0:
            self._rest = data[at:]
            if len(self._rest) > MAX_LINE_BYTES + 1:
                self._refuse(TooLarge(f"a command line is at most {MAX_LINE_BYTES} bytes"), out)
            return len(data)
        line = data[at : end - 1] if data[end - 1 : end] == b"\r" and end > at else data[at:end]
        if len(line) > MAX_LINE_BYTES:
            self._refuse(TooLarge(f"a command line is at most {MAX_LINE_BYTES} bytes"), out)
        else:
            self._command(line, out)
        return end + 1

    def _plain_pushes(self, match: re.Match[bytes], data: bytes, out: list[Request]) -> int:
        """The hot path: pushes with this very command line in a row, up to one batch of them."""
        line, size, start = match[0], int(match[2]), match.end()
        if not 0 < size <= self._max_batch_bytes:
            self._refuse_push(self._bad_size(size), size, out)
            return start
        begin, end = start, len(data)
        most = JOIN_BYTES // size if size <= SMALL_BYTES else 1
        bodies: list[bytes | bytearray] = []
        while (stop := start + size) <= end:
            bodies.append(data[start:stop])
            start = stop
            if len(bodies) == most or not data.startswith(line, start):
                break
            start += len(line)
        else:
            stop = 0  # the last command line seen has its body still to come
        topic = match[1].decode()
        if len(bodies) == 1:
            _plain_one_by_one(topic, bodies, out)
        elif bodies:
            last = begin + (len(bodies) - 1) * (size + len(line)) + size
            ends = data[begin + size - 1 : last : size + len(line)]
            lf_count = count_lf(memoryview(data)[begin:last]) - len(bodies) + 1
            if lf_count == len(bodies) == ends.count(b"\n"):
                out.append(Pushes(topic, bodies, None))
            else:
                _plain_one_by_one(topic, bodies, out)
        if not stop:
            self._expect_body(Push(topic, b""), size, out)
        elif start == end and size <= SMALL_BYTES:
            self.again = Again(topic, line, len(line) + size)
        return start

    def _command(self, line: bytes, out: list[Request]) -> None:
        words = line.split(b" ")
        verb = words[0].upper()
        try:
            if verb == b"PUSH":
                self._push_command(words[1:], out)
            elif verb in COMMANDS and not _HTTP.match(line):
                out.append(COMMANDS[verb](words[1:]))
            else:
                raise UnknownCommand(_unknown(line))
        except LogdError as error:
            self._refuse(error, out)

    def _push_command(self, words: list[bytes], out: list[Request]) -> None:
        if len(words) == 1:
            self._one_line_push(words[0], out)
            return
        try:
            size = number(words[1], "the length of a PUSH") if words else -1
        except BadRequest as error:
            raise BadRequest(error.text, closes=True) from None
        if not 0 < size <= self._max_batch_bytes:
            self._refuse_push(self._bad_size(size), size, out)
            return
        try:
            push = _push_with(topic_name(words[0]), options(words[2:], PUSH_OPTIONS))
        except LogdError as error:
            self._refuse_push(error, size, out)
        else:
            self._expect_body(push, size, out)

    def _one_line_push(self, word: bytes, out: list[Request]) -> None:
        self._body = bytearray()
        self._state = self._in_one_line
        try:
            self._push = Push(topic_name(word), b"")
        except BadTopic as error:
            self._left, self._state = MAX_ONE_LINE_BYTES + 2, self._dropping_line
            self._refuse(error, out)

    def _bad_size(self, size: int) -> LogdError:
        if size < 0:
            return BadRequest("usage: PUSH <topic> <bytes> [options]", closes=True)
        if size == 0:
            return BadRequest("a batch holds at least one message")
        return TooLarge(f"a batch is at most {self._max_batch_bytes} bytes")

    def _refuse_push(self, error: LogdError, size: int, out: list[Request]) -> None:
        """Refuse a push but stay in step: its body is dropped as it comes in."""
        self._left = size
        self._state = self._dropping if size else self._in_commands
        self._refuse(error, out)

    def _expect_body(self, push: Push, size: int, out: list[Request]) -> None:
        if not self._budget.take(size):
            self._refuse_push(Busy(_BUSY), size, out)
            return
        self._push, self._left, self._body = push, size, bytearray()
        self._state = self._in_body

    def _in_body(self, data: bytes, at: int, out: list[Request]) -> int:
        end = at + self._left
        if not self._body and end <= len(data):
            self._body_is_here(data[at:end], out)
            return end
        piece = memoryview(data)[at:end]
        room = self.room()
        assert room is not None
        room[: len(piece)] = piece
        out += self.filled(len(piece))
        return at + len(piece)

    def room(self) -> memoryview | None:
        """What is still missing of a body, to be received into without a copy; then `filled`."""
        if self._state != self._in_body:
            return None
        if not self._body:
            self._body = bytearray(self._left)
        return memoryview(self._body)[-self._left :]

    def filled(self, size: int) -> list[Request]:
        out: list[Request] = []
        self._left -= size
        if not self._left:
            self._body_is_here(self._body, out)
        return out

    def _body_is_here(self, body: bytes | bytearray, out: list[Request]) -> None:
        self._budget.give(len(body))
        self._state, self._body = self._in_commands, bytearray()
        push = self._push
        if push == Push(push.topic, b""):
            _plain_one_by_one(push.topic, [body], out)
        else:
            out.append(push._replace(body=body))

    def _in_one_line(self, data: bytes, at: int, out: list[Request]) -> int:
        end = data.find(b"\n", at)
        piece = memoryview(data)[at : end + 1 if end >= 0 else len(data)]
        size = len(self._body) + len(piece)
        if size > MAX_ONE_LINE_BYTES + 2 or not self._budget.take(len(piece)):
            self._refuse_one_line(size, out)
            return at
        self._body += piece
        if end < 0:
            return len(data)
        message = bytes(self._body[:-2] if self._body.endswith(b"\r\n") else self._body[:-1])
        self._budget.give(len(self._body))
        self._state, self._body = self._in_commands, bytearray()
        if len(message) > MAX_ONE_LINE_BYTES:
            self._refuse(TooLarge(_ONE_LINE_LIMIT), out)
        else:
            out.append(Pushes(self._push.topic, [message + b"\n"], None))
        return end + 1

    def _refuse_one_line(self, size: int, out: list[Request]) -> None:
        """Too long, or no room for it: what is here is let go, what comes is dropped."""
        self._budget.give(len(self._body))
        self._left, self._body = MAX_ONE_LINE_BYTES + 2 - len(self._body), bytearray()
        self._state = self._dropping_line
        too_long = size > MAX_ONE_LINE_BYTES + 2
        self._refuse(TooLarge(_ONE_LINE_LIMIT) if too_long else Busy(_BUSY), out)

    def _dropping(self, data: bytes, at: int, out: list[Request]) -> int:
        dropped = min(self._left, len(data) - at)
        self._left -= dropped
        if not self._left:
            self._state = self._in_commands
        return at + dropped

    def _dropping_line(self, data: bytes, at: int, out: list[Request]) -> int:
        end = data.find(b"\n", at)
        self._left -= (end + 1 if end >= 0 else len(data)) - at
        if self._left < 0:
            self._refuse(TooLarge(_ONE_LINE_LIMIT), out)
        elif end >= 0:
            self._state = self._in_commands
            return end + 1
        return len(data)

    def _refuse(self, error: LogdError, out: list[Request]) -> None:
        out.append(Refused(error))
        if error.closes:
            self._close()

    def _close(self) -> None:
        self.closed, self.again = True, None
        self._state, self._rest, self._body = self._in_commands, b"", bytearray()


def _push_with(topic: str, given: dict[str, Any]) -> Push:
    enc, id_ = given.get("enc", LINES), given.get("id", NO_ID)
    return Push(topic, b"", enc, given.get("count"), given.get("sum"), id_)


def _plain_one_by_one(topic: str, bodies: list[bytes | bytearray], out: list[Request]) -> None:
    """Plain pushes of which some hold several messages, or are refused."""
    for body in bodies:
        if body.endswith(b"\n"):
            count = count_lf(body)
            out.append(Pushes(topic, [body], [count] if count > 1 else None))
        else:
            out.append(Refused(BadRequest("a body of lines must end in LF")))


def _unknown(line: bytes) -> str:
    if _HTTP.match(line):
        return "this port speaks the line protocol, not HTTP"
    return f"no command {quote(line.split(b' ')[0])}; HELP lists them"
