"""A client's TLS socket that behaves like a plain one, blocking or not.

The one of the standard library has no `sendmsg`, and raises its own exceptions instead of
BlockingIOError. A program that polls the descriptor has to read until nothing is left: TLS may hold
bytes that the kernel does not know about.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

_JOIN_BYTES = 64 * 1024  # so that TLS records have their full 16 KB


class TlsSocket(ssl.SSLSocket):
    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Send the part of the first buffers that fits into one call.

        After BlockingIOError, OpenSSL expects a call with the same bytes; more may follow them.
        """
        pieces, size = [], 0
        for buffer in buffers:
            pieces.append(buffer)
            size += len(buffer)
            if size >= _JOIN_BYTES:
                break
        try:
            return self.send(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, *arguments: Any, **named: Any) -> int:
        try:
            return super().recv_into(*arguments, **named)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None


def client_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Trusts the authorities in `ca`, or those of the system. Checks the name of the server."""
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = TlsSocket
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context
