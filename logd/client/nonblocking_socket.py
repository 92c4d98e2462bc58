"""A connection that never blocks: for a writer that sends from the program's own threads.

`send` queues a command until the socket accepts it; `push_out` and `take_in` move what can be moved
at once. To wait, poll `fileno()` for `events`. While replies are due, `take_in` counts a connection
that has moved no byte for `timeout_s` as lost. Knows nothing about batches.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from time import monotonic
from typing import Any

from logd.errors import LogdError
from logd.wire.addresses import lost, reason
from logd.wire.commands import Command
from logd.wire.replies import NotLogd, ReceivedReply, Replies

_MAX_PIECES = 64  # of one system call


class NonblockingSocket:
    def __init__(self, connection: socket.socket, address: str, timeout_s: float) -> None:
        connection.setblocking(False)
        self._socket, self._address, self._timeout_s = connection, address, timeout_s
        self._out: deque[memoryview] = deque()
        self._due: deque[Command[Any]] = deque()
        self._replies = Replies()
        self._moved_at_s = 0.0  # when a byte was sent or received, or nothing was due
        self._send_error: str | None = None  # nothing more can be sent
        self._end: str | None = None  # why there will be no more replies

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def events(self) -> int:
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def close(self) -> None:
        self._socket.close()

    @property
    def has_ended(self) -> bool:
        """Will `take_in` raise next? The socket may have no event that tells so."""
        return self._end is not None

    def send(self, command: Command[Any]) -> None:
        if not self._due:
            self._moved_at_s = monotonic()
        self._due.append(command)
        self._out += [memoryview(piece) for piece in (command.line, command.body) if piece]

    def push_out(self) -> None:
        """Send what the socket accepts."""
        out = self._out
        while out:
            try:
                sent = self._socket.sendmsg([out[i] for i in range(min(len(out), _MAX_PIECES))])
            except BlockingIOError:
                break
            except OSError as error:
                # Not raised: what the server sent before it closed the connection comes first.
                self._send_error = reason(error)
                out.clear()
                break
            self._moved_at_s = monotonic()
            while sent:
                piece = out.popleft()
                if len(piece) > sent:
                    out.appendleft(piece[sent:])
                sent -= min(sent, len(piece))

    def take_in(self) -> list[Any]:
        """The replies that have arrived: each command's result, or its LogdError.

        ConnectionLost when the connection has ended and everything before that was taken.
        """
        replies: list[Any] = []
        try:
            while self._end is None and self._receive():
                while (reply := self._replies.take()) is not None:
                    replies.append(self._result(reply))
            if self._due and monotonic() - self._moved_at_s > self._timeout_s:
                raise TimeoutError
        except OSError as error:
            self._end = reason(error)
        except NotLogd as error:
            self._end = f"it does not speak the logd protocol: {error}"
        if not replies and (end := self._end or self._send_error):
            raise lost(self._address, end)
        return replies

    def _receive(self) -> bool:
        try:
            with self._replies.room() as room:
                size = self._socket.recv_into(room)
        except BlockingIOError:
            return False
        if not size:
            raise OSError("it closed the connection")
        self._moved_at_s = monotonic()
        self._replies.received(size)
        return True

    def _result(self, reply: ReceivedReply | LogdError) -> Any:
        if not self._due:
            raise NotLogd("it sent more replies than there were commands")
        command = self._due.popleft()
        return command.answer(reply) if isinstance(reply, ReceivedReply) else reply
