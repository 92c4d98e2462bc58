"""Replies of the line protocol: their bytes, and their order on a connection.

`docs/protocol.md` specifies the bytes. Errors encode themselves, and a large reply is only its
first line here: the batches are sent from their files. A reply slot is a position in the order of a
connection's replies, for one push or several. It gets its `reply` when all its pushes are stored or
refused, and then informs its connection. Imports no sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat
from typing import Protocol

from logd.batch import Buffer
from logd.errors import LogdError
from logd.service import BatchesReply, ErrorReply, OkReply, Reply, StatsReply, TableReply, TextReply
from logd.storage.write_group import CheckedBatch
from logd.wire.commands import CursorInfo
from logd.wire.requests import Mixed, Pushes

try:
    from logd._native import ok_lines
except ImportError:  # installed without a compiler

    def ok_lines(turns: bytes, offsets: list[int], /) -> bytes:
        """OK for each turn: the offsets of a run, whose number the turn is, increase by one."""
        runs = [map(OK_ONE.__mod__, count(offset)) for offset in offsets]
        return b"".join([next(runs[run]) for run in turns])


OK = b"OK\r\n"
OK_PAIR = b"OK %d %d\r\n"  # offset and messages of a push, or offset and lag of a cursor
_BATCHES = b"BATCHES %d %d %d\r\n"
OK_ONE = b"OK %d 1\r\n"  # a push of one message; `logd._native.answer` writes the same


class ReplyEncoder:
    """Encodes replies. Readers that waited for the same write share one reply, encoded once."""

    def __init__(self) -> None:
        self._last: tuple[BatchesReply | None, bytes] = (None, b"")

    def encode(self, reply: Reply) -> bytes:
        match reply:
            case BatchesReply():
                return self.batches(reply)
            case ErrorReply(error):
                return error.line()
            case CursorInfo(offset, lag):
                return OK_PAIR % (offset, lag)
            case OkReply():
                return OK
            case TextReply(data):
                return _text(data)
            case StatsReply(values):
                return _text("".join([f"{k}: {v}\n" for k, v in values.items()]).encode())
            case TableReply(rows):
                return _text("".join([" ".join(map(str, row)) + "\n" for row in rows]).encode())

    def batches(self, reply: BatchesReply) -> bytes:
        """The hot path: small replies to READ."""
        last, data = self._last
        if last is not reply:
            data = encode_batches(*reply[:4])
            self._last = reply, data
        return data


def encode_batches(offset: int, messages: int, size: int, buffers: Sequence[Buffer]) -> bytes:
    return b"".join([_BATCHES % (offset, messages, size), *buffers])


def encode_head(reply: BatchesReply) -> bytes:
    return _BATCHES % reply[:3]


def _text(data: bytes) -> bytes:
    return b"TEXT %d\r\n%s" % (len(data), data)


# -- order ---------------------------------------------------------------------------------------


class SlotOwner(Protocol):
    def answered(self, slot: PushSlot | MixedSlot) -> None: ...
    def refused(self, error: LogdError, count: int) -> None:
        """Called before `answered`, with the number of pushes."""


class PushSlot:
    """A push, or consecutive pushes to one topic."""

    __slots__ = ("connection", "content", "holds", "messages", "offset", "reply")
    clients = 1

    def __init__(self, connection: SlotOwner, content: Pushes | CheckedBatch) -> None:
        self.connection = connection
        self.content = content
        self.reply: bytes | None = None
        self.holds = False  # requests after it start when it is answered
        self.offset = self.messages = 0

    def stored(self) -> None:
        content = self.content
        if not isinstance(content, Pushes):
            self.reply = OK_PAIR % (self.offset, self.messages)
        elif content.counts is not None:
            self.reply = OK_PAIR % (self.offset, content.counts[0])  # a single push
        elif len(content.bodies) == 1:
            self.reply = OK_ONE % self.offset
        else:
            count = len(content.bodies)
            self.reply = (OK_ONE * count) % tuple(range(self.offset, self.offset + count))
        self.connection.answered(self)

    def refused(self, error: LogdError) -> None:
        count = len(self.content.bodies) if isinstance(self.content, Pushes) else 1
        self.reply = error.line() * count
        self.connection.refused(error, count)
        self.connection.answered(self)


class MixedSlot:
    """Interleaved pushes to several topics: answered when the last topic has answered."""

    __slots__ = ("_missing", "_mixed", "_offsets", "_refusals", "connection", "holds", "reply")

    def __init__(self, connection: SlotOwner, mixed: Mixed) -> None:
        self.connection = connection
        self.reply: bytes | None = None
        self.holds = False
        self._mixed = mixed
        self._missing = len(mixed.runs)  # topics that have not answered
        self._offsets = [0] * self._missing
        self._refusals: dict[int, bytes] = {}

    def stored(self, run: int, offset: int) -> None:
        self._offsets[run] = offset
        self._settle()

    def refused(self, run: int, error: LogdError, count: int) -> None:
        self._refusals[run] = error.line()
        self.connection.refused(error, count)
        self._settle()

    def _settle(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.reply = self._lines()
            self.connection.answered(self)

    def _lines(self) -> bytes:
        turns, offsets, refusals = self._mixed.turns, self._offsets, self._refusals
        if not refusals:
            return ok_lines(turns, offsets)
        replies = [
            repeat(refusals[run]) if run in refusals else map(OK_ONE.__mod__, count(offset))
            for run, offset in enumerate(offsets)
        ]
        return b"".join([next(replies[run]) for run in turns])


class MixedRun:
    """The pushes of a `MixedSlot` to one topic."""

    __slots__ = ("_run", "_slot", "content", "messages", "offset")
    clients = 1

    def __init__(self, slot: MixedSlot, run: int, pushes: Pushes) -> None:
        self._slot, self._run = slot, run
        self.content: Pushes | CheckedBatch = pushes
        self.offset, self.messages = 0, len(pushes.bodies)

    def stored(self) -> None:
        self._slot.stored(self._run, self.offset)

    def refused(self, error: LogdError) -> None:
        self._slot.refused(self._run, error, self.messages)
