"""Bytes out and replies in at the same time, on one blocking thread, with a second's patience."""

from __future__ import annotations

import re
import select
import socket
import struct
from collections.abc import Callable

from tests.integration.fuzz.fuzzed_daemon import LATE_S, Patience
from tests.support.daemon import Reply

_SIZED = re.compile(rb"(?:TEXT|BATCHES \d+ \d+) (\d+)")
_LINE = re.compile(rb"OK|OK \d+ \d+|TEXT \d+|BATCHES \d+ \d+ \d+|END \d+|ERR [a-z-]+ [ -~]+")


class Replies:
    """Whole replies out of the bytes of a connection. Anything else is a failure."""

    def __init__(self) -> None:
        self.taken: list[Reply] = []
        self._rest = bytearray()
        self.ended = False

    @property
    def is_between(self) -> bool:
        return not self._rest

    def feed(self, data: bytes) -> None:
        self._rest += data
        at = 0
        while (end := self._rest.find(b"\r\n", at)) >= 0:
            head = bytes(self._rest[at:end])
            assert _LINE.fullmatch(head), f"no reply: {head!r}"
            assert not head.startswith(b"ERR internal"), head
            sized = _SIZED.fullmatch(head)
            stop = end + 2 + (int(sized[1]) if sized else 0)
            if stop > len(self._rest):
                break
            self.taken.append(Reply(head, bytes(self._rest[end + 2 : stop])))
            at = stop
        del self._rest[:at]


def exchange(
    connection: socket.socket,
    pieces: list[bytes],
    feed: Callable[[bytes], None],
    is_done: Callable[[], bool],
    patience: Patience,
    *,
    half_close: bool = False,
) -> bool:
    """Send all pieces, one call each, and take what comes until `is_done`. True if it has ended."""
    connection.setblocking(False)
    poll, out = select.poll(), list(reversed(pieces))
    patience.renew()
    while True:
        if not out and half_close:
            half_close = False
            try:
                connection.shutdown(socket.SHUT_WR)
            except OSError:  # it has closed already
                pass
        if not out and is_done():
            return False
        poll.register(connection, select.POLLIN | (select.POLLOUT if out else 0))
        ready = poll.poll(LATE_S * 50)
        if not ready:
            patience.waited()
            continue
        patience.renew()
        try:
            if ready[0][1] & select.POLLIN:
                piece = connection.recv(1 << 18)
                if not piece:
                    return True
                feed(piece)
            elif out:
                sent = connection.send(out[-1])
                out[-1] = out[-1][sent:]
                if not out[-1]:
                    out.pop()
            else:
                return True
        except ConnectionError:
            return True


def reset(connection: socket.socket) -> None:
    """End it without a goodbye."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
