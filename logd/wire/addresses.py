"""Addresses of servers, and the errors of connections. Shared by all clients; no I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

DEFAULT_PORT = 1774
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
TLS = "tls://"

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")  # by the version of OpenSSL
_ADDRESS = re.compile(r"(?:tls://)?(?:\[([^\[\]\s]+)\]|([^:/\[\]\s]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, or several, and the credentials for it.

    The token is given as text, or as a file that is read for each connection. `ca` is a PEM file
    with the authorities that may sign the server's certificate (default: those of the system);
    `cert` and `key` are the client's own. Plain values, so that it can be pickled.
    """

    address: str | tuple[str, ...] = DEFAULT_ADDRESS
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise ValueError("give a token or a file with one, not both")
        if self.key is not None and self.cert is None:
            raise ValueError("a key needs its cert")
        has_tls_only = self.ca is not None or self.cert is not None
        if has_tls_only and not all(map(is_tls, addresses(self.address))):
            raise ValueError(f"ca and cert need TLS; write the address as {TLS}host:port")


Target = str | Sequence[str] | Endpoint  # one address, or several to try in order


class ConnectionLost(ConnectionError):
    """No connection, or it was lost. The text names the address and says what to try."""


class WrongPort(ConnectionLost):
    """Another service listens there, or one of TLS and plain TCP was expected and not found."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[::1]:port` or a host; ValueError for anything else."""
    match = _ADDRESS.fullmatch(address)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"{address!r} is not an address; write host:port, or [::1]:1774 for IPv6")
    return match[1] or match[2], port


def is_tls(address: str) -> bool:
    return address.startswith(TLS)


def addresses(target: Target) -> list[str]:
    """The addresses to try, in order; ValueError if one is not valid."""
    if isinstance(target, Endpoint):
        return addresses(target.address)
    found = target.split(",") if isinstance(target, str) else list(target)
    for address in found:
        parse_address(address)
    if not found:
        raise ValueError("give at least one address")
    return found


def nobody_at(address: str, error: Exception) -> ConnectionLost:
    if getattr(error, "reason", None) in _NOT_TLS:
        bare = address.removeprefix(TLS)
        return WrongPort(f"{bare} does not speak TLS; write the address without {TLS}")
    return ConnectionLost(
        f"no logd answers at {address} ({reason(error)}); check the address,"
        " or start one there: logd --data-dir DIR --host ADDRESS"
    )


def not_logd(address: str, why: str, speaks: str) -> WrongPort:
    """Another protocol answered; `speaks` is HTTP, TLS or empty."""
    if speaks == "HTTP":
        tcp = f"give the TCP port of the daemon instead, which is {DEFAULT_PORT} by default"
        return WrongPort(f"{address} is an HTTP port; {tcp}")
    if speaks == "TLS":
        return WrongPort(f"{address} speaks TLS; write {TLS}{address}")
    return WrongPort(f"what listens at {address} is not logd ({why}); check the address")


def lost(address: str, why: str) -> ConnectionLost:
    return ConnectionLost(
        f"lost the connection to {address}: {why}; see the daemon's log, and try again"
    )


def reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if verification := getattr(error, "verify_message", None):
        return f"its certificate is not trusted: {verification}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
