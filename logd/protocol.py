"""The line protocol as bytes: an incremental parser for requests.

Sans I/O: `Parser.feed` takes the received bytes and returns the requests that they complete, in
order. An invalid request is returned as a `RefusedRequest`, so that it is answered in order; after
one that closes the connection the parser ignores all input.

Always: the requests do not depend on how the bytes were divided into pieces (consecutive plain
pushes are only grouped differently), and any bytes result in requests or refusals, never in an
exception. Between two calls the parser holds at most one unfinished line and one unfinished body;
the latter counts towards a budget that all connections share.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from logd.batch import JOIN_BYTES, LF, LINES, MAX_NUMBER, NO_ID, SMALL_BYTES, Buffer, count_lf
from logd.errors import BadRequest, BadTopic, Busy, LogdError, TooLarge, UnknownCommand
from logd.wire import requests
from logd.wire.requests import (
    MAX_WAIT_MS,
    Push,
    Pushes,
    Read,
    RefusedRequest,
    Request,
    mixed_pushes,
    pushes,
)

MAX_LINE_BYTES = 1024
MAX_ONE_LINE_BYTES = 64 * 1024
_MAX_LIKELY_BYTES = 1 << 20
_MAX_MIXED_TOPICS = 256  # of one request

_PLAIN_PUSH = re.compile(rb"(?i:PUSH) (%s) ([0-9]{1,19})\r?\n" % requests.TOPIC_NAME.encode())
_PLAIN_READ = re.compile(
    rb"(?i:READ) (%s) ([0-9]{1,18}) ([1-9][0-9]{0,17})"
    rb"(?: bytes=([0-9]{1,18}))?(?: wait=([0-9]{1,18}))?\r?\n" % requests.TOPIC_NAME.encode()
)  # as clients write it; any other form is parsed word by word
_ONE_LINE_LIMIT = f"a one-line message is at most {MAX_ONE_LINE_BYTES} bytes"
_LENGTH = "the length of a PUSH"
_BUSY = "too many unfinished pushes are under way; retry"
_HTTP = re.compile(rb"[A-Za-z]+ \S+ HTTP/[0-9.]+|[A-Za-z-]+: ")


class Budget:
    """Bytes that the unfinished bodies of all connections may use together."""

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


class RepeatablePush(NamedTuple):
    """The last push, if it was plain, of one message, and followed by nothing.

    If the next input is like it, `requests.one_push` parses it without the parser.
    """

    topic: str
    prefix: bytes  # of its command line, up to the size
    max_bytes: int


class Parser:
    """Bytes in, requests out. One per connection."""

    def __init__(self, max_batch_bytes: int, budget: Budget) -> None:
        self.closed = False
        self._max_batch_bytes = max_batch_bytes
        self._most_bytes = min(max_batch_bytes, SMALL_BYTES)  # of a push that is joined with others
        self._budget = budget
        self._state = self._in_commands
        self._rest = b""  # an unfinished command line
        self._body = bytearray()  # buffer of an unfinished body, or an unfinished one-line message
        self._push = Push("", b"")  # to which the body belongs
        self._left = 0  # missing bytes of the body, or bytes to drop
        self.begun = 0
        self.repeatable: RepeatablePush | None = None
        self.repeatable_read: str | None = None  # the topic of a plain READ followed by nothing
        self.likely_bytes = 0  # the next body's, if the last one was large
        self.unparsed_bytes = 0  # at the end of the last piece: feed them again

    def feed(self, data: bytes, most: int = MAX_NUMBER) -> list[Request]:
        """The requests that `data` completes. After `most` of them the parser stops, and
        `unparsed_bytes` is the number of bytes at the end of `data` that it has not parsed."""
        self.repeatable = self.repeatable_read = None
        begins = not self.unfinished
        if self._rest:
            data, self._rest = self._rest + data, b""
        out: list[Request] = []
        position, end = 0, len(data)
        while position < end and not self.closed and len(out) < most:
            position = self._state(data, position, out)
        self.unparsed_bytes = 0 if self.closed else end - position
        if begins or out:
            self.begun += 1
        return out

    def feed_large(self, data: memoryview, most: int = MAX_NUMBER) -> list[Request]:
        """The same as `feed`, without a copy of a whole body; nobody changes `data` any more."""
        if self._rest or self._state != self._in_commands or self.closed:
            return self.feed(bytes(data), most)
        match = _PLAIN_PUSH.match(data)
        if match is not None and 0 < int(match[2]) <= len(data) - match.end():
            out, done = self._large_plain_push(match, data)
        else:
            out, done = self._large_push(data)
        self.unparsed_bytes = 0
        return out + self.feed(bytes(data[done:]), most) if done < len(data) else out

    @property
    def unfinished(self) -> bool:
        """Is a command or a body incomplete? `begun` then distinguishes it from earlier ones."""
        return bool(self._rest) or self._state != self._in_commands

    def release(self) -> None:
        """Return the bytes of an unfinished body to the budget. The connection is closed."""
        if self._state == self._in_body:
            self._budget.give(len(self._body) or self._left)
        elif self._state == self._in_one_line:
            self._budget.give(len(self._body))
        self._close()

    # Each state parses the bytes from `at` on and returns where it stopped.

    def _in_commands(self, data: bytes, at: int, out: list[Request]) -> int:
        match = _PLAIN_PUSH.match(data, at)
        if match is not None:
            return self._plain_pushes(match, data, out)
        match = _PLAIN_READ.match(data, at)
        if match is not None:
            topic, where, messages, max_bytes, wait_ms = match.groups()
            if match.end() == len(data):
                self.repeatable_read = topic.decode()
            out.append(
                Read(
                    topic.decode(), int(where), int(messages),
                    None if max_bytes is None else int(max_bytes),
                    0 if wait_ms is None else min(int(wait_ms), MAX_WAIT_MS),
                )
            )  # fmt: skip
            return match.end()
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
        """The hot path: consecutive single messages to one topic, at most one batch of them."""
        at, topic = match.start(), match[1].decode()
        prefix = data[at : match.start(2)]
        bodies, end = pushes(data, at, prefix, self._most_bytes, JOIN_BYTES)
        if not bodies:
            return self._plain_push(match, data, out)
        if len(bodies) == 1 and data.startswith(b"PUSH ", end):
            done = self._mixed_pushes(data, at, out)
            if done:
                return done
        self.likely_bytes = 0
        out.append(Pushes(topic, bodies, None))
        if end == len(data):
            self.repeatable = RepeatablePush(topic, prefix, self._most_bytes)
        return end

    def _plain_push(self, match: re.Match[bytes], data: bytes, out: list[Request]) -> int:
        """Any other plain push: of several messages, large, unfinished, or invalid."""
        size, start = int(match[2]), match.end()
        if not 0 < size <= self._max_batch_bytes:
            self._refuse_push(self._bad_size(size), size, out)
            return start
        if start + size > len(data):
            self._expect_body(Push(match[1].decode(), b""), size, out)
            return start
        self.likely_bytes = _likely(size)
        out.append(_plain(match[1].decode(), data[start : start + size]))
        return start + size

    def _mixed_pushes(self, data: bytes, at: int, out: list[Request]) -> int:
        """Single messages to several topics in turn, at most one batch of them.

        Returns where they end; 0 if there are fewer than two.
        """
        end = min(len(data), at + JOIN_BYTES)
        topics, prefixes, turns = list[str](), list[bytes](), bytearray()
        bodies: list[list[Buffer]] = []
        while len(topics) < _MAX_MIXED_TOPICS:
            match = _PLAIN_PUSH.match(data, at)
            if match is None or (topic := match[1].decode()) in topics:
                break
            known = len(turns)
            topics.append(topic)
            prefixes.append(data[at : match.start(2)])
            bodies.append([])
            at = mixed_pushes(data, at, end, self._max_batch_bytes, prefixes, bodies, turns)
            if len(turns) == known:  # not a single message
                del topics[-1], bodies[-1]
                break
        if len(turns) < 2:
            return 0
        out.append(requests.Mixed(dict(zip(topics, bodies, strict=True)), bytes(turns)))
        return at

    def _large_plain_push(
        self, match: re.Match[bytes], data: memoryview
    ) -> tuple[list[Request], int]:
        """What a plain push with its body is, and where it ends."""
        start, end = match.end(), match.end() + int(match[2])
        out: list[Request] = []
        self.repeatable = self.repeatable_read = None
        self.begun += 1
        if end - start <= self._max_batch_bytes:
            out.append(_plain(match[1].decode(), data[start:end]))
        else:
            self._refuse(self._bad_size(end - start), out)
        return out, end

    def _large_push(self, data: memoryview) -> tuple[list[Request], int]:
        """What any other line is, with its body if that is all here, and where it ends."""
        start = bytes(data[: MAX_LINE_BYTES + 2]).find(b"\n") + 1
        out = self.feed(bytes(data[:start]))
        end = start + self._left
        if self._state != self._in_body or end > len(data):
            return out, start
        self._complete_body(data[start:end], out)
        return out, end

    def _command(self, line: bytes, out: list[Request]) -> None:
        words = line.split(b" ")
        verb = words[0].upper()
        try:
            if verb == b"PUSH":
                self._push_command(words[1:], out)
            elif verb in requests.COMMANDS and not _HTTP.match(line):
                out.append(requests.COMMANDS[verb](words[1:]))
            else:
                raise _unknown(line)
        except LogdError as error:
            self._refuse(error, out)

    def _push_command(self, words: list[bytes], out: list[Request]) -> None:
        if len(words) == 1:
            self._one_line_push(words[0], out)
            return
        try:
            size = requests.number(words[1], _LENGTH) if words else -1
        except BadRequest as error:
            raise BadRequest(error.text, closes=True) from None
        if not 0 < size <= self._max_batch_bytes:
            self._refuse_push(self._bad_size(size), size, out)
            return
        try:
            topic = requests.topic_name(words[0])
            given = requests.options(words[2:], requests.PUSH_OPTIONS)
        except LogdError as error:
            self._refuse_push(error, size, out)
            return
        enc, id_ = given.get("enc", LINES), given.get("id", NO_ID)
        push = Push(topic, b"", enc, given.get("count"), given.get("sum"), id_)
        self._expect_body(push, size, out)

    def _one_line_push(self, word: bytes, out: list[Request]) -> None:
        self._body = bytearray()
        self._state = self._in_one_line
        try:
            self._push = Push(requests.topic_name(word), b"")
        except BadTopic as error:
            self._left, self._state = MAX_ONE_LINE_BYTES + 2, self._dropping_line
            self._refuse(error, out)

    def _bad_size(self, size: int) -> LogdError:
        if size < 0:
            return BadRequest("usage: PUSH <topic> <bytes> [options]", closes=True)
        if size == 0:
            return BadRequest("a batch holds at least one message")
        if size > MAX_NUMBER:
            return BadRequest(f"{_LENGTH} must be a decimal number up to {MAX_NUMBER}", closes=True)
        return TooLarge(f"a batch is at most {self._max_batch_bytes} bytes")

    def _refuse_push(self, error: LogdError, size: int, out: list[Request]) -> None:
        """Refuse a push; its body is dropped when it arrives."""
        self._left = size
        self._state = self._dropping if size else self._in_commands
        self._refuse(error, out)

    def _expect_body(self, push: Push, size: int, out: list[Request]) -> None:
        if not self._budget.take(size):
            self._refuse_push(Busy(_BUSY), size, out)
            return
        self._push, self._left, self._body = push, size, bytearray()
        self._state, self.likely_bytes = self._in_body, _likely(size)

    def _in_body(self, data: bytes, at: int, out: list[Request]) -> int:
        end = at + self._left
        if not self._body and end <= len(data):
            self._complete_body(data[at:end], out)
            return end
        piece = memoryview(data)[at:end]
        room = self.room()
        assert room is not None
        room[: len(piece)] = piece
        out += self.filled(len(piece))
        return at + len(piece)

    def room(self) -> memoryview | None:
        """The buffer for the missing bytes of a body, if there are any; call `filled` after use."""
        if self._state != self._in_body:
            return None
        if not self._body:
            self._body = bytearray(self._left)
        return memoryview(self._body)[-self._left :]

    def filled(self, size: int) -> list[Request]:
        out: list[Request] = []
        self._left -= size
        if not self._left:
            self._complete_body(self._body, out)
        return out

    def _complete_body(self, body: Buffer, out: list[Request]) -> None:
        self._budget.give(len(body))
        self._state, self._body = self._in_commands, bytearray()
        push = self._push
        if push == Push(push.topic, b""):
            out.append(_plain(push.topic, body))
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
        """It is too long, or exceeds the budget: drop what has arrived and what follows."""
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
        # Its traceback refers to `out`, which refers to it: only a collection would free both.
        out.append(RefusedRequest(error.with_traceback(None)))
        if error.closes:
            self._close()

    def _close(self) -> None:
        self.closed, self.repeatable = True, None
        self._state, self._rest, self._body = self._in_commands, b"", bytearray()


def _likely(size: int) -> int:
    return size if SMALL_BYTES < size <= _MAX_LIKELY_BYTES else 0


def _plain(topic: str, body: Buffer) -> Request:
    if body[-1] != LF:
        return RefusedRequest(BadRequest("a body of lines must end in LF"))
    count = count_lf(body)
    return Pushes(topic, [body], [count] if count > 1 else None)


def _unknown(line: bytes) -> UnknownCommand:
    if _HTTP.match(line):
        return UnknownCommand("this port speaks the line protocol, not HTTP")
    text = f"no command {requests.quote(line.split(b' ')[0])}; HELP lists them"
    return UnknownCommand(text, log_text="")  # the word may be a token sent without AUTH
