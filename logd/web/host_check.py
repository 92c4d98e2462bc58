"""Who may talk HTTP to the daemon, before anything of a request is looked at.

A page on the web can make a browser send requests to this machine. `Host` must therefore name this
machine (a name that somebody points here for a moment does not), and `Origin`, where a browser
sends one, must be the daemon's own page. Nothing is ever allowed to other origins.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache

from logd.errors import BadRequest, Forbidden

Headers = Iterable[tuple[bytes, bytes]]  # names in small letters
_ONCE = {b"content-length", b"host", b"origin", b"transfer-encoding"}

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        b" connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class HostCheck:
    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names` are those that this daemon is known by, besides this machine's own."""
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}
        self._is_here = lru_cache(maxsize=64)(self._judge)  # clients ask by few names, very often

    def check(self, headers: Headers) -> None:
        """BadRequest for framing that two readers could understand in two ways; Forbidden for
        those who should not be here."""
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in found and name in _ONCE:
                raise BadRequest("a header that may come once came twice", closes=True)
            found[name] = value
        if b"transfer-encoding" in found and b"content-length" in found:
            raise BadRequest("send Content-Length or Transfer-Encoding, not both", closes=True)
        if found.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            text = "Transfer-Encoding must be chunked; compress with Content-Encoding: gzip"
            raise BadRequest(text, closes=True)
        host = found.get(b"host", b"")
        if not self._is_here(host):
            raise Forbidden("this Host is not known here; add its name to the setting http-names")
        origin = found.get(b"origin")
        if origin is not None and origin.lower().partition(b"://")[2] != host.lower():
            raise Forbidden("requests from pages of other origins are not taken")

    def _judge(self, host: bytes) -> bool:
        """An address that is written out is not a name that could be pointed somewhere else."""
        text = host.decode("latin-1").lower()
        name = text.rpartition(":")[0] if not text.endswith("]") and ":" in text else text
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name in self._names
        return True
