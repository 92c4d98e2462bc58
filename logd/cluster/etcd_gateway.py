"""Calls of etcd's JSON gateway, on whichever endpoint answers: connections, tokens, errors.

A call that may be repeated goes to the next endpoint after any failure. Another call is sent again
only while it is certain that nothing was changed: there was no connection, or etcd itself said that
it refused. Every other failure, and every reply that is not understood, is an unknown outcome.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from logd.cluster.bounded_http import BoundedConnection, Deadline, HttpReply
from logd.errors import BadRequest, OutcomeUnknown, RegisterUnavailable
from logd.wire.addresses import parse_address

AUTHENTICATE = "/v3/auth/authenticate"
_ENDPOINT = re.compile(r"(?:(https?)://)?([^/]*)/?")
_TOKEN = re.compile(r"[!-~]{1,8192}")

# Codes of gRPC with which etcd refuses a request before it is proposed, or when it is applied:
# invalid argument, permission denied, resource exhausted, unauthenticated. A request that timed
# out, lost its leader or was cut off by a shutdown has another code, and may be applied.
_REFUSED = {3, 7, 8, 16}
_UNAUTHENTICATED = 16
_OLD_TOKEN = {"etcdserver: revision of auth store is old", "auth: revision in header is old"}


class ResponseHeader(msgspec.Struct):
    """Numbers are strings in the gateway's JSON; fields that are 0 or empty are left out."""

    revision: int
    cluster_id: int = 0  # only in the header of a whole reply


class GatewayReply(msgspec.Struct):
    header: ResponseHeader


class _TokenReply(GatewayReply):
    token: str


class _ErrorReply(msgspec.Struct):
    code: int = 0
    message: str = ""


class _TokenRejected(RegisterUnavailable):
    """The token is no longer valid; the request was refused."""


R = TypeVar("R", bound=GatewayReply)


class EtcdGateway:
    """Used by any thread; one call is made at a time."""

    def __init__(
        self,
        endpoints: Sequence[str],
        ca: str | None,
        cert: str | None,
        key: str | None,
        user: str | None,
        password: str | None,
    ) -> None:
        self._tls = (ca, cert, key)
        self._credentials = _encoded_credentials(user, password)
        self._token: str | None = None
        self._cluster_id = 0
        self._lock = threading.Lock()
        self._connections = [self._endpoint(text) for text in endpoints]  # the preferred one first
        if not self._connections:
            raise BadRequest("give at least one endpoint of etcd")

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()

    def call(
        self, path: str, request: object, kind: type[R], timeout_s: float, *, repeatable: bool
    ) -> R:
        """The reply. RegisterUnavailable: nothing was changed, or the call can be repeated."""
        deadline = Deadline(timeout_s)
        if not self._lock.acquire(timeout=max(0.0, timeout_s)):
            raise RegisterUnavailable("another call to etcd takes all of the time")
        try:
            return self._on_any(path, msgspec.json.encode(request), kind, deadline, repeatable)
        finally:
            self._lock.release()

    def _on_any(
        self, path: str, body: bytes, kind: type[R], deadline: Deadline, repeatable: bool
    ) -> R:
        failures = list[str]()
        for left in range(len(self._connections), 0, -1):
            share = deadline.share(left)  # one endpoint that hangs leaves time for the others
            reply_by = share if repeatable else deadline
            try:
                return self._on_preferred(path, body, kind, share, reply_by)
            except (RegisterUnavailable, OutcomeUnknown) as error:
                self._connections.append(self._connections.pop(0))
                if isinstance(error, OutcomeUnknown) and not repeatable:
                    raise
                failures.append(error.text)
        raise RegisterUnavailable(f"etcd is not available: {'; '.join(failures)}")

    def _on_preferred(
        self, path: str, body: bytes, kind: type[R], connect_by: Deadline, reply_by: Deadline
    ) -> R:
        try:
            return self._ask(self._ready(connect_by), path, body, kind, reply_by)
        except _TokenRejected:  # expired, or the rights were changed: once more, with a new one
            return self._ask(self._ready(connect_by), path, body, kind, reply_by)

    def _ready(self, deadline: Deadline) -> BoundedConnection:
        """The preferred connection, open, and with a token if there is a user."""
        connection = self._connections[0]
        connection.connect(deadline)
        if self._credentials and self._token is None:
            self._token = self._new_token(connection, deadline)
            connection.connect(deadline)  # the server may have ended it after its reply
        return connection

    def _new_token(self, connection: BoundedConnection, deadline: Deadline) -> str:
        try:
            reply = self._ask(connection, AUTHENTICATE, self._credentials, _TokenReply, deadline)
        except OutcomeUnknown as error:  # at most a token that nobody uses
            raise RegisterUnavailable(error.text) from None
        if _TOKEN.fullmatch(reply.token) is None:
            raise RegisterUnavailable(f"{connection.address} gave a token that is not valid")
        return reply.token

    def _ask(
        self,
        connection: BoundedConnection,
        path: str,
        body: bytes,
        kind: type[R],
        deadline: Deadline,
    ) -> R:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = self._token
        reply = connection.exchange(path, body, headers, deadline)
        try:
            if reply.status != 200:
                raise self._refusal(connection.address, reply)
            decoded = msgspec.json.decode(reply.body, type=kind, strict=False)
        except (msgspec.MsgspecError, RecursionError):
            connection.close()
            text = f"{connection.address} replied {reply.status} with what etcd does not send"
            raise OutcomeUnknown(f"{text}; check that it is the client port of etcd") from None
        self._check_cluster(connection, decoded.header)
        return decoded

    def _refusal(self, address: str, reply: HttpReply) -> RegisterUnavailable | OutcomeUnknown:
        error = msgspec.json.decode(reply.body, type=_ErrorReply)
        text = f"{address} replied {reply.status}: {error.message[:300]}"
        is_from_etcd = error.message.startswith("etcdserver: ")
        if error.message in _OLD_TOKEN or (is_from_etcd and error.code == _UNAUTHENTICATED):
            self._token = None
            return _TokenRejected(text)
        if is_from_etcd and error.code in _REFUSED:
            return RegisterUnavailable(text)
        return OutcomeUnknown(text)

    def _check_cluster(self, connection: BoundedConnection, header: ResponseHeader) -> None:
        """A revision of one etcd cluster means nothing in another."""
        if not header.cluster_id or header.revision < 1:
            raise OutcomeUnknown(f"{connection.address} sent a reply without the header of etcd")
        if self._cluster_id not in (0, header.cluster_id):
            raise OutcomeUnknown(
                f"{connection.address} belongs to another etcd cluster than before; correct the"
                " endpoints, or restart logd if the cluster was replaced"
            )
        self._cluster_id = header.cluster_id

    def _endpoint(self, text: str) -> BoundedConnection:
        match = _ENDPOINT.fullmatch(text)
        try:
            if match is None:
                raise ValueError(f"{text!r} is not an endpoint; write https://host:2379")
            host, port = parse_address(match[2] if ":" in match[2] else f"{match[2]}:2379")
        except ValueError as error:
            raise BadRequest(str(error)) from None
        is_tls = match[1] == "https" or (match[1] is None and any(self._tls))
        if is_tls:
            self._context()  # so that a wrong file is found now
        elif any(self._tls):
            raise BadRequest(f"{text}: a CA or a certificate needs an endpoint with https://")
        return BoundedConnection(host, port, self._context if is_tls else None)

    def _context(self) -> ssl.SSLContext:
        """Made for each connection, because certificates are renewed while the daemon runs."""
        ca, cert, key = self._tls
        try:
            context = ssl.create_default_context(cafile=ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if cert is not None:
                context.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise BadRequest(f"the certificates for etcd cannot be used: {error}") from None
        return context


def _encoded_credentials(user: str | None, password: str | None) -> bytes:
    """The request for a token; empty if there is no user."""
    if user is None and password is None:
        return b""
    if user is None or password is None:
        raise BadRequest("give both a user and a password of etcd, or neither")
    try:
        return msgspec.json.encode({"name": user, "password": password})
    except ValueError:
        raise BadRequest("the user or the password of etcd is not UTF-8") from None


def _no_password() -> str:
    """Otherwise OpenSSL would prompt at the terminal and block the daemon."""
    raise ValueError("the key is encrypted; store it without a passphrase, readable only by logd")
