"""Connections whose requests go through a gate first: who is there, and may they?

Always: nothing is kept for a client that has not said who it is. Its bytes are looked at line by
line, a body has no budget, and whatever needs a token ends the connection. What follows a right
token, in the same piece even, is served at full speed.
"""

from __future__ import annotations

import asyncio
from collections import deque

from logd.access.access_file import Access, Grant, certificate_names
from logd.access.authorization import Authorizer
from logd.net.buffered_reply import TlsConnection
from logd.protocol import Budget, Parser
from logd.tcp import Connection, Connections
from logd.wire.requests import Auth, RefusedRequest, Request

_NOTHING = Budget(0)
_TURN_LINES = 100  # of a client that is not known


class GatedConnection(Connection):
    gate: Authorizer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        access, grant = self._service.access, None
        if access is not None:
            names = certificate_names(transport.get_extra_info("peercert"))
            grant = access.of_certificate(names)
        self.open_gate(grant)
        super().connection_made(transport)

    def open_gate(self, grant: Grant | None) -> None:
        config = self._service.config
        self._made_at_s = self._connections.now_s
        self.gate = Authorizer(self._service.access, config.max_topics_per_connection, grant)
        if not self.gate.is_known:
            self.parser = Parser(config.max_batch_bytes, _NOTHING)

    def parse(self, data: bytes) -> int:
        """Line by line until the client is known: what follows its token is served as any other."""
        at = lines = 0
        while at < len(data) and not self.gate.is_known and not self._closing:
            if lines == _TURN_LINES:
                return len(data) - at
            end = data.find(b"\n", at) + 1 or len(data)
            self.received(self.parser.feed(data[at:end]), end - at)
            at, lines = end, lines + 1
        if at == len(data) or self._closing:
            return 0
        return super().parse(data[at:] if at else data)

    def _prepare_singles(self) -> None:
        """The short way of single messages is for topics that this connection may push to."""
        again = self.parser.again
        if again is not None and again.topic in self.gate.pushed:
            super()._prepare_singles()
        else:
            self._again_singles = None

    def received(self, requests: list[Request], size: int) -> None:
        was_known = self.gate.is_known
        if any(isinstance(request, Auth) for request in requests):
            self._ways.clear()  # they were another's, who may have had other rights
        admitted = self.gate.admit(requests)
        if self.gate.is_known and not was_known:  # between two commands: nothing is unfinished
            self._let_in()
        super().received(admitted, size)

    def check(self, now_s: float) -> None:
        super().check(now_s)
        late_s = now_s - self._made_at_s - self._service.config.request_timeout_s
        if not self.gate.is_known and late_s > 0:
            self._transport.abort()

    def judge_again(self, access: Access | None) -> None:
        """After a reload: whoever has lost their grant is shown out."""
        self._again_singles = None
        self._ways.clear()
        was_known = self.gate.is_known
        if not self.gate.judge_again(access, self._service.config.max_topics_per_connection):
            self.end()
        elif self.gate.is_known and not was_known:  # nobody is asked any more
            if self.parser.unfinished:
                self.end()
            else:
                self._let_in()
        else:
            self._check_unfinished()

    def _check_unfinished(self) -> None:
        """Commands that wait to be carried out, and a READ that waits for messages: are they still
        allowed? What is being answered already is answered."""
        waiting = self._waiting
        if waiting is None or waiting.read is None:
            self._queue = deque(self.gate.admit_again(self._queue))
            return
        read, *queue = self.gate.admit_again([waiting.read, *self._queue])
        self._queue = deque(queue)
        if isinstance(read, RefusedRequest):
            waiting.end()
            self._service.reject(read.error, self)

    def _let_in(self) -> None:
        """From now on its bodies may have a share of the memory."""
        self.parser = Parser(self._service.config.max_batch_bytes, self._connections.budget)


class GatedTlsConnection(GatedConnection, TlsConnection):
    pass


def add_kinds(connections: Connections) -> None:
    """Let `connections` make each kind that there is: by whether it is encrypted, and gated."""
    connections.kinds |= {
        (False, True): GatedConnection,
        (True, False): TlsConnection,
        (True, True): GatedTlsConnection,
    }


def judge_again(connections: Connections) -> None:
    """After a reload: what is checked from now on holds for connections that are open, too."""
    access = connections.service.access
    for connection in list(connections.open):
        if isinstance(connection, GatedConnection):
            connection.judge_again(access)
        elif access is not None:
            connection.end()
