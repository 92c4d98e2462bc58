"""Who may connect: how many, how many from one address, how many per second.

Counts and decides, for all doors together; knows no sockets and no clock of its own. Always: what
entered leaves exactly once, and those who were turned away count against nobody.
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
_MAX_ANSWERED = 256  # of those turned away, at a time; the others are cut off without a word


class AdmittedConnection(NamedTuple):
    """One connection's place: from which address, and why it is turned away, if it is."""

    address: str
    home: str
    refusal: Busy | None = None
    is_answered: bool = True  # is there time to tell it so?
    is_syslog: bool = False


class ConnectionLimits:
    def __init__(self, config: Config, now_s: Callable[[], float]) -> None:
        self.config = config
        self._now_s = now_s
        self.open = 0
        self._syslog_open = 0
        self.turned_away = 0  # and not gone yet
        self._by_home: dict[str, int] = {}
        self._allowed, self._allowed_at_s = float(config.connection_rate), now_s()

    def may_begin(self, others: int) -> bool:
        """Before a TLS handshake, beside so many others: is there a place for it, and a turn?"""
        config = self.config
        if others >= config.max_connections:
            return False
        return not config.connection_rate or self._take_turn(config.connection_rate)

    @property
    def is_full_for_syslog(self) -> bool:
        """Half of the connections is for the other protocols, however many senders there are."""
        return self._syslog_open >= max(1, self.config.max_connections // 2)

    def enter(
        self, address: str, *, had_turn: bool = False, is_syslog: bool = False
    ) -> AdmittedConnection:
        entry = AdmittedConnection(address, home(address), is_syslog=is_syslog)
        reason = self._reason(entry, had_turn)
        if reason is not None:
            self.turned_away += 1
            refusal = Busy(f"{reason}; retry later", closes=True)
            return entry._replace(refusal=refusal, is_answered=self.turned_away <= _MAX_ANSWERED)
        self.open += 1
        self._syslog_open += is_syslog
        self._by_home[entry.home] = self._by_home.get(entry.home, 0) + 1
        log.debug("connection from %s opened; %d are open", address, self.open)
        return entry

    def leave(self, entry: AdmittedConnection) -> None:
        if entry.refusal is not None:
            self.turned_away -= 1
            return
        self.open -= 1
        self._syslog_open -= entry.is_syslog
        log.debug("connection from %s closed; %d are open", entry.address, self.open)
        left = self._by_home[entry.home] - 1
        if left:
            self._by_home[entry.home] = left
        else:
            del self._by_home[entry.home]

    def _reason(self, entry: AdmittedConnection, had_turn: bool) -> str | None:
        config = self.config
        if self.open >= config.max_connections:
            return "too many connections"
        if entry.is_syslog and self.is_full_for_syslog:
            return "too many syslog connections, which have half of max-connections"
        most = config.max_connections_per_address
        if most and self._by_home.get(entry.home, 0) >= most:
            return "too many connections from your address"
        rate = 0 if had_turn else config.connection_rate
        if rate and not self._take_turn(rate):
            return "too many new connections at a time"
        return None

    def _take_turn(self, rate: int) -> bool:
        """As many as a second allows may come at once; then they come at the rate."""
        now_s = self._now_s()
        self._allowed = min(rate, self._allowed + (now_s - self._allowed_at_s) * rate)
        self._allowed_at_s = now_s
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True


@lru_cache(maxsize=1024)
def home(address: str) -> str:
    """What counts as one address: of IPv6 the 64 bits that a single machine has to itself."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
