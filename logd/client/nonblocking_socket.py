"""A connection that never waits: for a writer that does its work beside the program's own.

`send` keeps a command until the socket takes it; `push_out` and `take_in` move what can be moved at
once. Whoever wants to wait polls `fileno()`, for writing too while `wants_out`.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from logd.errors import LogdError
from logd.wire.addresses import lost, reason
from logd.wire.commands import Command
from logd.wire.replies import NotLogd, ReceivedReply, Replies

_MAX_PIECES = 64  # of one system call


class NonblockingSocket:
    def __init__(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        self._socket, self._address = connection, address
        self._out: deque[memoryview] = deque()
        self._due: deque[Command[Any]] = deque()
        self._replies = Replies()
        self._broken: str | None = None  # why nothing more can be sent
        self._end: str | None = None  # why there will be no more replies

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def wants_out(self) -> bool:
        return bool(self._out)

    @property
    def has_ended(self) -> bool:
        """Will `take_in` have nothing more to give? No event of the socket need tell of that."""
        return self._end is not None

    def send(self, command: Command[Any]) -> None:
        self._due.append(command)
        self._out += [memoryview(piece) for piece in (command.line, command.body) if piece]

    def push_out(self) -> bool:
        """Send what the socket takes; True if it took any."""
        out, moved = self._out, False
        while out:
            try:
                sent = self._socket.sendmsg([out[i] for i in range(min(len(out), _MAX_PIECES))])
            except BlockingIOError:
                break
            except OSError as error:
                # Not raised: what the daemon said before it hung up is to be read first.
                self._broken = reason(error)
                out.clear()
                break
            moved = True
            while sent:
                piece = out.popleft()
                if len(piece) > sent:
                    out.appendleft(piece[sent:])
                sent -= min(sent, len(piece))
        return moved

    def take_in(self) -> list[Any]:
        """What came in: each command's answer, or the LogdError it got.

        ConnectionLost when the connection has ended and everything before that was taken.
        """
        answers: list[Any] = []
        try:
            while self._end is None and self._receive():
                while (reply := self._replies.take()) is not None:
                    answers.append(self._answer(reply))
        except OSError as error:
            self._end = reason(error)
        except NotLogd as error:
            self._end = f"it is no logd: {error}"
        if not answers and (end := self._end or self._broken):
            raise lost(self._address, end)
        return answers

    def _receive(self) -> bool:
        try:
            with self._replies.room() as room:
                size = self._socket.recv_into(room)
        except BlockingIOError:
            return False
        if not size:
            raise OSError("it closed the connection")
        self._replies.received(size)
        return True

    def _answer(self, reply: ReceivedReply | LogdError) -> Any:
        if not self._due:
            raise NotLogd("it answered more than it was asked")
        command = self._due.popleft()
        return command.answer(reply) if isinstance(reply, ReceivedReply) else reply
