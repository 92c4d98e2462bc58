"""Checks the headers of every request before it is routed: framing, `Host` and `Origin`.

A web page can make a browser send requests to this machine. `Host` must therefore name this
machine, which defeats DNS rebinding, and `Origin`, if a browser sends it, must be the daemon's own
page. No other origin is ever allowed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import lru_cache

from logd.errors import BadRequest, Forbidden

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case
_SINGLE = {b"content-length", b"host", b"origin", b"transfer-encoding"}

SAFE_HEADERS: tuple[tuple[bytes, bytes], ...] = (
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
        """`names` are accepted besides those of this machine."""
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}
        self._is_allowed = lru_cache(maxsize=64)(self._is_local)  # few names, many requests

    def check(self, headers: Headers) -> None:
        """BadRequest for framing that two HTTP parsers could interpret differently; Forbidden for
        a host or an origin that is not allowed."""
        found: dict[bytes, bytes] = {}
        for name, value in headers:
            if name in found and name in _SINGLE:
                raise BadRequest("a header that may occur once occurs twice", closes=True)
            found[name] = value
        if b"transfer-encoding" in found and b"content-length" in found:
            raise BadRequest("send Content-Length or Transfer-Encoding, not both", closes=True)
        if found.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            text = "Transfer-Encoding must be chunked; compress with Content-Encoding: gzip"
            raise BadRequest(text, closes=True)
        host = found.get(b"host", b"")
        if not self._is_allowed(host):
            raise Forbidden("this Host is not allowed; add its name to the setting http-names")
        origin = found.get(b"origin")
        if origin is not None and origin.lower().partition(b"://")[2] != host.lower():
            raise Forbidden("requests from pages of other origins are not allowed")

    def _is_local(self, host: bytes) -> bool:
        """An IP address cannot be rebound to another machine, so each is allowed."""
        text = host.decode("latin-1").lower()
        name = text.rpartition(":")[0] if not text.endswith("]") and ":" in text else text
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name in self._names
        return True
