"""The receiving side of a connection: bytes → parser → authorizer → requests.

A turn parses a bounded number of requests; the bytes that are left wait for the next turn, so that
other connections are served in between. Nothing is stored for a client that has to authenticate and
has not: its input is parsed line by line, its bodies get no memory, and any command that needs a
token closes the connection. Imports neither asyncio nor sockets.
"""

from __future__ import annotations

from typing import Protocol

from logd.access.authorization import Authorizer
from logd.protocol import Budget, Parser, RepeatablePush
from logd.service import Service
from logd.wire.requests import Auth, Request

_TURN_REQUESTS, _TURN_BYTES = 500, 64 << 10  # parsed in one turn: 1 to 3 ms
_TURN_LINES = 100  # of a client that has not authenticated
_NO_MEMORY = Budget(0)


class RequestReceiver(Protocol):
    """The connection."""

    is_closing: bool

    def receive(self, requests: list[Request], size: int) -> None: ...
    def remove_routes(self) -> None: ...


class RequestTurns:
    def __init__(
        self,
        connection: RequestReceiver,
        max_batch_bytes: int,
        budget: Budget,
        authorizer: Authorizer | None,
    ) -> None:
        self._connection, self.authorizer = connection, authorizer
        self._max_batch_bytes, self._budget = max_batch_bytes, budget
        self.parser = Parser(max_batch_bytes, budget if self.is_authenticated else _NO_MEMORY)
        self.unparsed, self._unparsed_at = b"", 0  # received, and parsed up to there

    @property
    def is_authenticated(self) -> bool:
        """Also true if no authentication is required."""
        return self.authorizer is None or self.authorizer.is_known

    @property
    def repeatable(self) -> RepeatablePush | None:
        """The last push, if more of its kind may use the fast path: allowed, nothing after it."""
        push = self.parser.repeatable
        if push is None or self.unparsed:
            return None
        is_allowed = self.authorizer is None or push.topic in self.authorizer.pushed
        return push if is_allowed else None

    @property
    def repeatable_read(self) -> str | None:
        """The topic of the last READ, if more of its kind may use the fast path."""
        topic = self.parser.repeatable_read
        if topic is None or self.unparsed:
            return None
        is_allowed = self.authorizer is None or self.authorizer.may_read(topic)
        return topic if is_allowed else None

    def feed(self, data: bytes | memoryview) -> None:
        """A body in a memoryview is not copied, and belongs to its request from now on."""
        if self.unparsed:
            self.unparsed += bytes(data)
            return
        left = self._parse(data)
        if left and not self._connection.is_closing:
            self.unparsed = bytes(data[-left:])

    def parse_more(self) -> None:
        """A turn with the bytes that are left."""
        piece = self.unparsed[self._unparsed_at : self._unparsed_at + _TURN_BYTES]
        self._unparsed_at += len(piece) - self._parse(piece)
        if self._unparsed_at >= len(self.unparsed):
            self.unparsed, self._unparsed_at = b"", 0

    def _parse(self, data: bytes | memoryview) -> int:
        """Take the requests in `data`. Returns the number of bytes at its end that are left."""
        if self.authorizer is not None and not self.authorizer.is_known:
            return self._parse_lines(bytes(data))
        feed = self.parser.feed_large if isinstance(data, memoryview) else self.parser.feed
        requests = feed(data, _TURN_REQUESTS)  # type: ignore[arg-type]
        left = self.parser.unparsed_bytes
        if self.authorizer is not None:
            requests = self._authorize(requests, self.authorizer)
        self._connection.receive(requests, len(data) - left)
        return left

    def _parse_lines(self, data: bytes) -> int:
        """Line by line until the client has authenticated; then the rest as usual."""
        at = lines = 0
        while at < len(data) and not self.is_authenticated and not self._connection.is_closing:
            if lines == _TURN_LINES:
                return len(data) - at
            end = data.find(b"\n", at) + 1 or len(data)
            self.take(self.parser.feed(data[at:end]), end - at)
            at, lines = end, lines + 1
        if at == len(data) or self._connection.is_closing:
            return 0
        return self._parse(data[at:])

    def take(self, requests: list[Request], size: int) -> None:
        """Pass requests, parsed from `size` bytes, to the connection if they are allowed."""
        if self.authorizer is not None:
            requests = self._authorize(requests, self.authorizer)
        self._connection.receive(requests, size)

    def _authorize(self, requests: list[Request], authorizer: Authorizer) -> list[Request]:
        was_authenticated = authorizer.is_known
        if any(isinstance(request, Auth) for request in requests):
            self._connection.remove_routes()  # the previous token may have had other rights
        admitted = authorizer.admit(requests)
        if authorizer.is_known and not was_authenticated:  # nothing is unfinished between commands
            self._allow_bodies()
        return admitted

    def reauthorize(self, service: Service) -> bool:
        """Apply a reloaded access file. False: the connection has to be closed."""
        if self.authorizer is None:
            return service.access is None
        was_authenticated = self.is_authenticated
        if not self.authorizer.reload(service.access, service.config.max_topics_per_connection):
            return False
        if self.is_authenticated and not was_authenticated:
            if self.parser.unfinished:
                return False
            self._allow_bodies()
        return True

    def _allow_bodies(self) -> None:
        """From now on unfinished bodies may use the memory that all connections share."""
        self.parser = Parser(self._max_batch_bytes, self._budget)

    def discard(self) -> None:
        """Drop what was received, and everything that follows."""
        self.unparsed, self._unparsed_at = b"", 0
        self.parser.release()

    def close(self) -> None:
        """Without a reference to the connection, which is then freed at once, with its TLS session:
        the limit of handshakes counts sessions."""
        self.parser.release()
        del self._connection
