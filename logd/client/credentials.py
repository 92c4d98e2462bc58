"""What a client shows to a daemon: a token, a certificate; and how it knows the daemon's.

A token is sent right behind connecting, and its answer comes before that of the first command: no
round trip is spent on it. Files are read for each connection, so that they can be replaced. A token
is in no text that is raised here.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from logd.errors import Unauthorized
from logd.wire.addresses import ConnectionLost, Endpoint, Target, is_tls, parse_address

if TYPE_CHECKING:
    import ssl

_TOKEN = re.compile(r"[!-~]{1,512}")


def auth_line(target: Target) -> bytes:
    """What to send first; nothing where there is no token. Unauthorized where it is none."""
    if not isinstance(target, Endpoint):
        return b""
    token, source = target.token, "the token"
    if target.token_file is not None:
        source = target.token_file
        try:
            token = Path(source).read_text("latin-1").strip()
        except OSError as error:
            raise Unauthorized(f"cannot read the token in {source}: {error.strerror}") from None
    if token is None:
        return b""
    if not _TOKEN.fullmatch(token):
        raise Unauthorized(f"{source} is not one word of printable ASCII characters")
    return f"AUTH {token}\r\n".encode()


def context(address: str, target: Target) -> ssl.SSLContext | None:
    """How to secure a connection to this address; None where it is not to be. OSError."""
    if not is_tls(address):
        return None
    from logd.client.tls_socket import client_context  # where it is not needed it is not loaded

    shown = target if isinstance(target, Endpoint) else Endpoint(address)
    try:
        return client_context(shown.ca, shown.cert, shown.key)
    except OSError as error:
        files = ", ".join(filter(None, (shown.ca, shown.cert, shown.key)))
        raise ConnectionLost(f"of no use here: {files}: {error.strerror or error}") from None


def connect(address: str, target: Target, timeout_s: float | None) -> tuple[socket.socket, bool]:
    """A secured socket, and whether a token was sent, whose answer comes first. OSError."""
    host, port = parse_address(address)
    secure, line = context(address, target), auth_line(target)
    connection = socket.create_connection((host, port), timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if secure is not None:
            connection = secure.wrap_socket(connection, server_hostname=host)
        if line:
            connection.sendall(line)
    except BaseException:
        connection.close()
        raise
    return connection, bool(line)
