"""A client's TLS socket that behaves as a plain one does, blocking or not.

The standard library's has no `sendmsg`, and tells in a way of its own that nothing can be moved
now. Whoever watches its descriptor has to read until nothing is left: TLS may hold bytes that the
kernel knows nothing of.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

_JOIN_BYTES = 64 * 1024  # a call makes records of at least 16 KB where there is as much to send


class TlsSocket(ssl.SSLSocket):
    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:  # type: ignore[override]
        """Send what of the first buffers fits into one call.

        OpenSSL wants a call that could not be finished again with the same bytes: those to whom
        BlockingIOError is raised come again with these, and perhaps more behind them.
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
    """Trusts those in `ca`, else whom the system trusts; the name of the daemon is checked."""
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = TlsSocket
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context
