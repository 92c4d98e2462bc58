"""The TCP listener of the line protocol, and all open connections of the daemon.

`Connections` holds what connections share, applies settings to them, and stops them. Connections of
`POST /log` are among them, since they are the same protocol without a socket. The settings of all
listeners are checked here, at the start and at a reload; invalid ones raise BadRequest.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import stat

from logd.access import access_file
from logd.access.access_file import Access, Grant
from logd.access.authorization import Authorizer
from logd.config import Config, address
from logd.errors import BadRequest
from logd.net import tls
from logd.net.connection import Connection
from logd.net.replies import ReplyEncoder
from logd.protocol import Budget
from logd.service import Service
from logd.storage.periodic_tasks import for_each

log = logging.getLogger("logd")
_FOLLOWER_CHECKS = 0.25  # of idle ones; a part of the shortest timeout


class Connections:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.budget = Budget(service.config.max_unfinished_bytes)
        self.encoder = ReplyEncoder()
        self.tls: tls.ListenerContext | None = None
        self.open: set[Connection] = set()
        self._idle_followers: set[Connection] = set()  # at the last check of each
        self._check_all_at_s = 0.0
        self.now_s = service.scheduler.monotonic_s()
        self.is_stopping = False
        self._is_configured = False

    def configure(self, config: Config) -> None:
        """Apply the settings at the start and at a reload. BadRequest: nothing was changed."""
        _check_exposed(config)
        access = _load_access(config)
        context = tls.server_context(config.tls_cert, config.tls_key, config.tls_client_ca)
        if self._is_configured and (context is None) != (self.tls is None):
            raise BadRequest("TLS can be switched on and off by a restart only: see tls-cert")
        self._is_configured = True
        service = self.service
        service.config = service.connection_limits.config = config
        service.access = access
        if context is not None:
            if self.tls is None:
                self.tls = tls.ListenerContext.before(service.connection_limits, context)
            self.tls.current = context
        self.budget.limit_bytes = config.max_unfinished_bytes
        for connection in list(self.open):
            connection.reauthorize()

    def authorizer(self, grant: Grant | None) -> Authorizer | None:
        """For a new connection; None if there is nothing to check."""
        access, max_topics = self.service.access, self.service.config.max_topics_per_connection
        if access is None and not max_topics:
            return None
        return Authorizer(access, max_topics, grant)

    async def listen(
        self, host: str, port: int, passed: socket.socket | None = None
    ) -> asyncio.Server:
        return await tls.listen(lambda: Connection(self), self.tls, host, port, passed)

    def sweep(self) -> None:
        """Once per second: abort connections that are idle or slow for too long. There may be
        thousands of idle followers: they are checked less often."""
        self.now_s = self.service.scheduler.monotonic_s()
        if self.now_s >= self._check_all_at_s:
            config = self.service.config
            shortest_s = min(config.idle_timeout_s, config.request_timeout_s)
            self._check_all_at_s = self.now_s + _FOLLOWER_CHECKS * shortest_s
            self._idle_followers.clear()
        for_each(list(self.open - self._idle_followers), self._check)

    def _check(self, connection: Connection) -> None:
        if connection.check(self.now_s):
            self._idle_followers.add(connection)

    def stop(self) -> None:
        """Start no more commands; those under way are answered."""
        self.is_stopping = True
        for connection in list(self.open):
            connection.stop()


def _load_access(config: Config) -> Access | None:
    """The grants of the access file; None: every client may do everything."""
    if not config.access_file:
        return None
    file = tls.secret_file(config.access_file)
    granted = access_file.load(file)
    if file.stat().st_mode & stat.S_IROTH:
        log.warning("every user of this machine can read %s; run chmod o-r", file)
    return granted


def _check_exposed(config: Config) -> None:
    """Refuse to serve other machines without authentication, unless that is set explicitly."""
    has_certificates, has_tokens = bool(config.tls_client_ca), bool(config.access_file)
    for name, where, has_proof in (
        ("host", config.host, has_certificates or has_tokens),
        ("http-host", config.http_host, has_certificates or has_tokens),
        ("syslog-host", config.syslog_host, has_certificates),
    ):
        if where == "off" or _is_loopback(address(where)[0]):
            continue
        if not has_proof and not config.allow_anonymous:
            proof = "tls-client-ca" if name == "syslog-host" else "access-file or tls-client-ca"
            raise BadRequest(
                f"{name} {where} is open to other machines without authentication;"
                f" set {proof}, or allow-anonymous if that is intended"
            )
        if has_tokens and not config.tls_cert:
            log.warning("%s %s: tokens and messages are not encrypted; set tls-cert", name, where)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
