"""Where daemons are, and what is said when none answers there. For every kind of client."""

from __future__ import annotations

import re
from collections.abc import Sequence

DEFAULT_PORT = 1774
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"

_ADDRESS = re.compile(r"(?:\[([^\[\]\s]+)\]|([^:\[\]\s]+))(?::([0-9]{1,5}))?")

Target = str | Sequence[str]  # one address, or several to try in order


class ConnectionLost(ConnectionError):
    """No connection, or no more. The text names the address and says what to try."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[::1]:port` or a host alone; ValueError for anything else."""
    match = _ADDRESS.fullmatch(address)
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ValueError(f"{address!r} is not an address; write host:port, or [::1]:1774 for IPv6")
    return match[1] or match[2], port


def addresses(target: Target) -> list[str]:
    """The addresses to try, in order; ValueError where one is none."""
    found = target.split(",") if isinstance(target, str) else list(target)
    for address in found:
        parse_address(address)
    if not found:
        raise ValueError("give at least one address")
    return found


def nobody_at(address: str, error: Exception) -> ConnectionLost:
    return ConnectionLost(
        f"no logd answers at {address} ({reason(error)}); check the address,"
        " or start one there: logd --data-dir DIR --host ADDRESS"
    )


def lost(address: str, why: str) -> ConnectionLost:
    return ConnectionLost(
        f"lost the connection to {address}: {why}; see the daemon's log, and try again"
    )


def reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
