"""Limits on connections: in total, per address, and new ones per second.

They apply to all listeners together. Every connection that enters leaves exactly once, and refused
connections count towards no limit. Knows neither sockets nor a clock.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from logd.config import Config
from logd.errors import Busy

log = logging.getLogger("logd")
_MAX_ANSWERED = 256  # refused connections at a time that get a reply; the others are aborted


class AdmittedConnection(NamedTuple):
    """A connection that was counted, or refused."""

    address: str
    network: str  # what counts as one address
    refusal: Busy | None = None
    is_answered: bool = True  # the refusal is sent before it is closed
    is_syslog: bool = False


class ConnectionLimits:
    def __init__(self, config: Config, now_s: Callable[[], float]) -> None:
        self.config = config
        self._now_s = now_s
        self.open = 0
        self._syslog_open = 0
        self.refused = 0  # and not closed yet
        self._by_network: dict[str, int] = {}
        self._allowed, self._allowed_at_s = float(config.connection_rate), now_s()

    def may_begin(self, others: int) -> bool:
        """May a TLS handshake begin, with this number of other connections?"""
        config = self.config
        if others >= config.max_connections:
            return False
        return not config.connection_rate or self._take_turn(config.connection_rate)

    @property
    def is_full_for_syslog(self) -> bool:
        """Half of the connections are reserved for the other protocols."""
        return self._syslog_open >= max(1, self.config.max_connections // 2)

    def enter(
        self, address: str, *, had_turn: bool = False, is_syslog: bool = False
    ) -> AdmittedConnection:
        entry = AdmittedConnection(address, network(address), is_syslog=is_syslog)
        reason = self._reason(entry, had_turn)
        if reason is not None:
            self.refused += 1
            refusal = Busy(f"{reason}; retry later", closes=True)
            return entry._replace(refusal=refusal, is_answered=self.refused <= _MAX_ANSWERED)
        self.open += 1
        self._syslog_open += is_syslog
        self._by_network[entry.network] = self._by_network.get(entry.network, 0) + 1
        log.debug("connection from %s opened; %d are open", address, self.open)
        return entry

    def leave(self, entry: AdmittedConnection) -> None:
        if entry.refusal is not None:
            self.refused -= 1
            return
        self.open -= 1
        self._syslog_open -= entry.is_syslog
        log.debug("connection from %s closed; %d are open", entry.address, self.open)
        left = self._by_network[entry.network] - 1
        if left:
            self._by_network[entry.network] = left
        else:
            del self._by_network[entry.network]

    def _reason(self, entry: AdmittedConnection, had_turn: bool) -> str | None:
        config = self.config
        if self.open >= config.max_connections:
            return "too many connections"
        if entry.is_syslog and self.is_full_for_syslog:
            return "too many syslog connections; they may use half of max-connections"
        most = config.max_connections_per_address
        if most and self._by_network.get(entry.network, 0) >= most:
            return "too many connections from your address"
        rate = 0 if had_turn else config.connection_rate
        if rate and not self._take_turn(rate):
            return "too many new connections per second"
        return None

    def _take_turn(self, rate: int) -> bool:
        """A token bucket that holds the connections of one second."""
        now_s = self._now_s()
        self._allowed = min(rate, self._allowed + (now_s - self._allowed_at_s) * rate)
        self._allowed_at_s = now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True


@lru_cache(maxsize=1024)
def network(address: str) -> str:
    """What counts as one address: for IPv6 the /64 network, which one machine can have."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
