"""The TCP listener of the line protocol, and all open connections of the daemon.

`Connections` holds what connections share, applies settings to them, and stops them. Connections of
`POST /log` are among them, since they are the same protocol without a socket.
"""

from __future__ import annotations

import asyncio
import socket

from logd.access.access_file import Grant
from logd.access.authorization import Authorizer
from logd.config import Config
from logd.errors import BadRequest
from logd.net import listener_checks, tls
from logd.net.connection import Connection
from logd.net.reply_encoding import ReplyEncoder
from logd.protocol import Budget
from logd.service import Service
from logd.storage.periodic_tasks import for_each


class Connections:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.budget = Budget(service.config.max_unfinished_bytes)
        self.encoder = ReplyEncoder()
        self.tls: tls.ListenerContext | None = None
        self.open: set[Connection] = set()
        self.now_s = service.scheduler.monotonic_s()
        self.is_stopping = False
        self._is_configured = False

    def configure(self, config: Config) -> None:
        """Apply the settings at the start and at a reload. BadRequest: nothing was changed."""
        listener_checks.check_exposed(config)
        access = listener_checks.load_access(config)
        context = tls.server_context(config.tls_cert, config.tls_key, config.tls_client_ca)
        if self._is_configured and (context is None) != (self.tls is None):
            raise BadRequest("TLS can be switched on and off by a restart only: see tls-cert")
        self._is_configured = True
        service = self.service
        service.config = service.admission.config = config
        service.access = access
        if context is not None:
            if self.tls is None:
                self.tls = tls.ListenerContext.before(service.admission, context)
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
        """Once per second: abort connections that are idle or slow for too long."""
        self.now_s = self.service.scheduler.monotonic_s()
        for_each(list(self.open), lambda connection: connection.check(self.now_s))

    def stop(self) -> None:
        """Start no more commands; those under way are answered."""
        self.is_stopping = True
        for connection in list(self.open):
            connection.stop()
