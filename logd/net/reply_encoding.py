"""The bytes of each reply of the line protocol, except of errors, which encode themselves.

`docs/protocol.md` specifies them. A large reply is only its first line here: the batches are sent
from their files. Imports no sockets.
"""

from __future__ import annotations

from logd.service import BatchesReply, ErrorReply, OkReply, Reply, StatsReply, TableReply, TextReply
from logd.wire.commands import CursorInfo

OK = b"OK\r\n"
OK_PAIR = b"OK %d %d\r\n"  # offset and messages of a push, or offset and lag of a cursor
OK_ONE = b"OK %d 1\r\n"  # a push of one message; `logd._native.answer` writes the same


class ReplyEncoder:
    """Encodes replies. Readers that waited for the same write share one reply, encoded once."""

    def __init__(self) -> None:
        self._last: tuple[BatchesReply | None, bytes] = (None, b"")

    def encode(self, reply: Reply) -> bytes:
        match reply:
            case BatchesReply():
                return self._batches(reply)
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

    def _batches(self, reply: BatchesReply) -> bytes:
        if self._last[0] is not reply:
            self._last = reply, b"".join([encode_head(reply), *reply.buffers])
        return self._last[1]


def encode_head(reply: BatchesReply) -> bytes:
    return b"BATCHES %d %d %d\r\n" % (reply.offset, reply.messages, reply.size)


def _text(data: bytes) -> bytes:
    return b"TEXT %d\r\n%s" % (len(data), data)
