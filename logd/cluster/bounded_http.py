"""One kept HTTP connection on which a request takes a limited time and a reply a limited size.

`http.client` limits only each call on the socket, so a server that sends a byte now and then could
hold a thread forever; here every read is limited by what is left until the deadline. The errors
tell whether the request may have been processed: RegisterUnavailable is raised only before its
first byte was sent. Only the lookup of a host name has no limit other than the resolver's.
"""

from __future__ import annotations

import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import NamedTuple, cast

from logd.errors import LogdError, OutcomeUnknown, RegisterUnavailable
from logd.wire.addresses import reason

MAX_REPLY_BYTES = 1 << 20  # a state has hundreds of bytes, a list of members some thousands


class Deadline:
    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """TimeoutError if nothing is left: a timeout of 0 would mean a nonblocking socket."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def share(self, count: int) -> Deadline:
        """An earlier deadline, which leaves as much time for each of `count - 1` others."""
        return Deadline((self._end_s - time.monotonic()) / count)


class HttpReply(NamedTuple):
    status: int
    body: bytes


class BoundedConnection:
    """Used by one thread at a time. `make_context` is called for each connection with TLS."""

    def __init__(
        self, host: str, port: int, make_context: Callable[[], ssl.SSLContext] | None
    ) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port, self._make_context = host, port, make_context
        self._http = http.client.HTTPConnection(host, port)
        self._http.auto_open = 0  # `connect` connects, so that its failure is known to be harmless

    def close(self) -> None:
        self._http.close()

    def connect(self, deadline: Deadline) -> None:
        """RegisterUnavailable if there is no connection."""
        if self._is_usable():
            return
        self.close()
        try:
            self._http.sock = self._opened(deadline)
        except (OSError, ValueError, LogdError) as error:
            raise RegisterUnavailable(f"no connection to {self.address}: {_why(error)}") from None

    def exchange(
        self, path: str, body: bytes, headers: dict[str, str], deadline: Deadline
    ) -> HttpReply:
        """POST on the open connection; OutcomeUnknown if there is no complete reply."""
        try:
            self._http.sock.settimeout(deadline.left_s())
        except TimeoutError:
            raise RegisterUnavailable(f"no time left to ask {self.address}") from None
        try:
            self._http.request("POST", path, body, headers)
            self._http.response_class = cast(
                type[http.client.HTTPResponse], _ResponseFactory(deadline)
            )
            response = self._http.getresponse()
            return HttpReply(response.status, response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.close()
            raise OutcomeUnknown(f"no reply from {self.address}: {_why(error)}") from None

    def _is_usable(self) -> bool:
        """Open, and the server has not ended it; between replies it has nothing else to send."""
        if self._http.sock is None:
            return False
        poll = select.poll()
        poll.register(self._http.sock, select.POLLIN)
        return not poll.poll(0)

    def _opened(self, deadline: Deadline) -> socket.socket:
        failure: OSError = OSError("the name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        ):
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(deadline.left_s())
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._secured(opened, deadline)
            except OSError as error:
                opened.close()
                failure = error
        raise failure

    def _secured(self, opened: socket.socket, deadline: Deadline) -> socket.socket:
        if self._make_context is None:
            return opened
        context = self._make_context()
        opened.settimeout(deadline.left_s())  # of the whole handshake
        return context.wrap_socket(opened, server_hostname=self._host)


class _ResponseFactory:
    """Stands for the class HTTPResponse, with a deadline for all that it reads."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def __call__(
        self, connection: socket.socket, method: str | None = None
    ) -> http.client.HTTPResponse:
        limited = cast(socket.socket, _LimitedSocket(connection, self._deadline))
        return http.client.HTTPResponse(limited, method=method)


class _LimitedSocket:
    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection, self._deadline = connection, deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_LimitedReader(self._connection, self._deadline))


class _LimitedReader(io.RawIOBase):
    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection, self._deadline = connection, deadline
        self._raw = connection.makefile("rb", buffering=0)
        self._left_bytes = MAX_REPLY_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._connection.settimeout(self._deadline.left_s())
        count = self._raw.readinto(buffer) or 0
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise OSError(f"the reply is larger than {MAX_REPLY_BYTES} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _why(error: Exception) -> str:
    return error.text if isinstance(error, LogdError) else reason(error)
