"""TLS before a door: certificates, and the handshake of each connection.

A connection is counted, and may be turned away, before the handshake is paid for; one that does not
finish it in time is cut off. The context is looked at for each new connection, so a reload is a new
context here, and the connections that are open go on with the old one.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from logd.admission import Admission, Entry
from logd.errors import BadRequest

_HANDSHAKE_S = 10.0
_CREDENTIAL = "credential:"


class Door(Protocol):
    """The protocol behind the handshake."""

    entry: Entry | None

    def connection_made(self, transport: Any) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> Any: ...


class Tls:
    """Whether new connections are encrypted, and with which certificate. All doors share it."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.context = context

    def before(self, make: Callable[[], Any], admission: Admission) -> Any:
        """What a new connection meets: the door itself, or a handshake in front of it."""
        return Handshake(self.context, make, admission) if self.context is not None else make()


class Handshake(asyncio.Protocol):
    def __init__(
        self, context: ssl.SSLContext, make: Callable[[], Door], admission: Admission
    ) -> None:
        self._context, self._make, self._admission = context, make, admission
        self._entry: Entry | None = None
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        self._entry = self._admission.enter(peer_address(plain))
        if self._entry.refusal is not None:
            plain.abort()  # it could be told only behind a handshake
        else:
            self._shaking = asyncio.ensure_future(self._shake(plain, self._entry))

    def connection_lost(self, error: Exception | None) -> None:
        if self._entry is not None and self._shaking is None:
            self._admission.leave(self._entry)

    async def _shake(self, plain: asyncio.Transport, entry: Entry) -> None:
        early, secure = _Early(), None
        try:
            secure = await asyncio.get_running_loop().start_tls(
                plain, early, self._context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except OSError:
            plain.abort()  # no TLS, no certificate, the wrong one, or gone: the client knows
        finally:
            if secure is None or early.is_lost:
                self._admission.leave(entry)
        if secure is not None and not early.is_lost:
            early.hand_over(secure, self._make(), entry)


class _Early(asyncio.Protocol):
    """What comes with the end of a handshake, before the door can be opened."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._eof = self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self._data.append(data)

    def eof_received(self) -> None:
        self._eof = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True

    def hand_over(self, secure: asyncio.Transport, door: Door, entry: Entry) -> None:
        door.entry = entry
        secure.set_protocol(cast(asyncio.Protocol, door))
        door.connection_made(secure)
        for data in self._data:
            door.data_received(data)
        if self._eof:
            door.eof_received()


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
        context.load_cert_chain(secret_file(certificate), secret_file(key) if key else None)
    except (OSError, ValueError) as error:
        raise BadRequest(f"tls-cert {certificate} with tls-key {key or 'in it'}: {error}") from None
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(secret_file(client_ca))
        except (OSError, ValueError) as error:
            raise BadRequest(f"tls-client-ca {client_ca}: {error}") from None
    return context


def secret_file(name: str) -> Path:
    """The file that a setting names: a path, or a credential that systemd has handed over."""
    if not name.startswith(_CREDENTIAL):
        return Path(name)
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise BadRequest(
            f"{name}: there is no $CREDENTIALS_DIRECTORY; see LoadCredential= in systemd"
        )
    return Path(directory) / Path(name.removeprefix(_CREDENTIAL)).name
