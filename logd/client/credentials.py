"""A client's credentials: its token, its certificate, and the certificates that it trusts.

A token is sent directly after connecting, and its reply comes before that of the first command, so
it costs no round trip. Files are read for each connection, so that they can be replaced. No error
text contains a token.
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
    """The AUTH command; empty without a token. Unauthorized: it is not a valid token."""
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
    """The TLS settings for this address; None if it does not use TLS. OSError."""
    if not is_tls(address):
        return None
    from logd.client.tls_socket import client_context  # loaded only if it is needed

    endpoint = target if isinstance(target, Endpoint) else Endpoint(address)
    try:
        return client_context(endpoint.ca, endpoint.cert, endpoint.key)
    except OSError as error:
        files = ", ".join(filter(None, (endpoint.ca, endpoint.cert, endpoint.key)))
        raise ConnectionLost(f"cannot use {files}: {error.strerror or error}") from None


def connect(address: str, target: Target, timeout_s: float | None) -> tuple[socket.socket, bool]:
    """A connected socket, and whether a token was sent, whose reply comes first. OSError."""
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
