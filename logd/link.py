"""A connection that never waits: for a writer that does its work beside the program's own.

`send` keeps a command until the socket takes it; `push_out` and `take_in` move what can be moved at
once. Whoever wants to wait polls `fileno()`, for writing too while `wants_out`.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from logd.addresses import lost, reason
from logd.commands import Command
from logd.errors import LogdError
from logd.replies import NotLogd, Replies, Reply

_MAX_PIECES = 64  # of one system call


class Link:
    def __init__(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        self._socket, self._address = connection, address
        self._out: deque[memoryview] = deque()
        self._due: deque[Command[Any]] = deque()
        self._replies = Replies()
        self._end: str | None = None  # why there will be no more replies

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    @property
    def wants_out(self) -> bool:
        return bool(self._out)

    def send(self, command: Command[Any]) -> None:
        self._due.append(command)
        self._out += [memoryview(piece) for piece in (command.line, command.body) if piece]

    def push_out(self) -> None:
        """Send what the socket takes; ConnectionLost where it takes no more at all."""
        out = self._out
        while out:
            try:
                sent = self._socket.sendmsg([out[i] for i in range(min(len(out), _MAX_PIECES))])
            except BlockingIOError:
                return
            except OSError as error:
                # Not raised yet: what the daemon said before it hung up is to be read first.
                self._end = self._end or reason(error)
                out.clear()
                return
            while sent:
                piece = out.popleft()
                if len(piece) > sent:
                    out.appendleft(piece[sent:])
                sent -= min(sent, len(piece))

    def take_in(self) -> list[Any]:
        """What came in: each command's answer, or the LogdError it got.

        ConnectionLost when the connection has ended and everything before that was taken.
        """
        answers: list[Any] = []
        try:
            while self._receive():
                while (reply := self._replies.take()) is not None:
                    answers.append(self._answer(reply))
        except (NotLogd, OSError, IndexError) as error:
            self._end = reason(error) if isinstance(error, OSError) else f"it is no logd: {error}"
        if self._end is not None and not answers:
            raise lost(self._address, self._end)
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

    def _answer(self, reply: Reply | LogdError) -> Any:
        command = self._due.popleft()
        return command.answer(reply) if isinstance(reply, Reply) else reply
