"""TLS of the listeners: the certificate of the daemon, and whether clients need one.

The event loop does the handshakes. It gets one context, which passes each new connection to the
current one: a reload applies to new connections only. Above the limit of connections no handshake
begins.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from logd.access.connection_limits import ConnectionLimits
from logd.errors import BadRequest

_HANDSHAKE_S = 10.0
_CREDENTIAL = "credential:"


class ListenerContext(ssl.SSLContext):
    current: ssl.SSLContext
    _limits: ConnectionLimits
    _sessions: WeakSet[ssl.SSLObject]  # of connections that are open or in a handshake

    @classmethod
    def before(cls, limits: ConnectionLimits, current: ssl.SSLContext) -> Self:
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.current, made._limits, made._sessions = current, limits, WeakSet()
        return made

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """Called by the event loop when a handshake begins."""
        if not self._limits.may_begin(len(self._sessions)):
            raise ssl.SSLError("too many connections")  # the loop closes it
        session = self.current.wrap_bio(*arguments, **named)
        self._sessions.add(session)
        return session


async def listen(
    make: Callable[[], asyncio.Protocol], context: ListenerContext | None, host: str, port: int,
    passed: socket.socket | None,
) -> asyncio.Server:  # fmt: skip
    """Listen, with TLS if there is a context. `passed` listens already and is used instead."""
    listening: dict[str, Any] = {"sock": passed} if passed else {"host": host, "port": port}
    timeout_s = _HANDSHAKE_S if context is not None else None
    return await asyncio.get_running_loop().create_server(
        make, backlog=1024, ssl=context, ssl_handshake_timeout=timeout_s, **listening
    )


def is_secure(transport: asyncio.BaseTransport) -> bool:
    return transport.get_extra_info("sslcontext") is not None


def peer_address(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def server_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext | None:
    """BadRequest, with the name of the setting, if a file is invalid."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(
            secret_file(certificate), secret_file(key) if key else None, password=_no_password
        )
    except (OSError, ValueError) as error:
        raise BadRequest(f"tls-cert {certificate} with tls-key {key or 'in it'}: {error}") from None
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(secret_file(client_ca))
        except (OSError, ValueError) as error:
            raise BadRequest(f"tls-client-ca {client_ca}: {error}") from None
    return context


def _no_password() -> str:
    """Otherwise OpenSSL would prompt at the terminal and block the daemon."""
    raise ValueError("the key is encrypted; store it without a passphrase, readable only by logd")


def secret_file(name: str) -> Path:
    """The file that a setting names: a path, or a systemd credential."""
    if not name.startswith(_CREDENTIAL):
        return Path(name)
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise BadRequest(
            f"{name}: $CREDENTIALS_DIRECTORY is not set; see systemd's LoadCredential="
        )
    return Path(directory) / Path(name.removeprefix(_CREDENTIAL)).name
