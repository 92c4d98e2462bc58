"""TLS at the doors: the daemon's certificate, and who of the clients must have one.

The loop does the handshakes. It is given one context for good, and that hands each new connection
to the one that is current, so that a reload is for new connections, and those that are open go on
as they began. Past the limit on connections a handshake is not even begun.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from logd.access.connection_limits import ConnectionLimits
from logd.errors import BadRequest

HANDSHAKE_S = 10.0
_CREDENTIAL = "credential:"


class ListenerContext(ssl.SSLContext):
    current: ssl.SSLContext
    _admission: ConnectionLimits
    _sessions: WeakSet[ssl.SSLObject]  # of connections that are open, or on the way to it

    @classmethod
    def before(cls, admission: ConnectionLimits, current: ssl.SSLContext) -> Self:
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.current, made._admission, made._sessions = current, admission, WeakSet()
        return made

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """What the loop calls when a handshake is to begin."""
        if not self._admission.may_begin(len(self._sessions)):
            raise ssl.SSLError("too many connections")  # the loop closes it
        session = self.current.wrap_bio(*arguments, **named)
        self._sessions.add(session)
        return session


def is_secure(transport: asyncio.BaseTransport) -> bool:
    return transport.get_extra_info("sslcontext") is not None


def peer_address(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def server_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext | None:
    """BadRequest, by the setting's name, where the files are of no use."""
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
    """Else OpenSSL would ask at the terminal, and the daemon wait for ever."""
    raise ValueError("the key is encrypted; store it without a passphrase, readable to logd alone")


def secret_file(name: str) -> Path:
    """The file that a setting names: a path, or a credential that systemd has handed over."""
    if not name.startswith(_CREDENTIAL):
        return Path(name)
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise BadRequest(f"{name}: no $CREDENTIALS_DIRECTORY is set; see systemd's LoadCredential=")
    return Path(directory) / Path(name.removeprefix(_CREDENTIAL)).name
