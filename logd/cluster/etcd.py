"""The register on etcd, and the members that are alive, through etcd's JSON gateway.

The register is the key `/<prefix>/<cluster>/state`. It is read with a linearizable range and
written with a transaction that compares its `mod_revision`; a lease is never involved. A reply
counts only if it contains what such a transaction returns: a comparison that failed has to be
shown by the other revision, because in the gateway's JSON a missing `succeeded` means false.

`publish_member` and `members` use keys with a lease. They are information for people and a hint
whom to ask; a node that is missing there may be alive, and one that is listed may be dead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from logd.cluster.etcd_gateway import EtcdGateway, GatewayReply, ResponseHeader
from logd.cluster.register import ClusterState, Versioned
from logd.errors import BadRequest, OutcomeUnknown, RegisterUnavailable

RANGE, TXN, PUT, GRANT = "/v3/kv/range", "/v3/kv/txn", "/v3/kv/put", "/v3/lease/grant"
TIMEOUT_S = 5.0  # of calls that only inform


class _KeyValue(msgspec.Struct):
    key: bytes  # base64 in JSON, as bytes always are in msgspec
    mod_revision: int
    value: bytes = b""


class _RangeReply(GatewayReply):
    kvs: tuple[_KeyValue, ...] = ()


class _OperationReply(msgspec.Struct):
    response_put: GatewayReply | None = None
    response_range: _RangeReply | None = None


class _TxnReply(GatewayReply):
    succeeded: bool = False
    responses: tuple[_OperationReply, ...] = ()


class _GrantReply(GatewayReply):
    ID: int


class EtcdRegister:
    """A Register. One call runs at a time; others wait, within their own time limits.

    An endpoint is `http://host:port` or `https://host:port`. `ca`, `cert` and `key` are PEM files,
    which are read again for each connection.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        cluster: str,
        *,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._gateway = EtcdGateway(endpoints, ca, cert, key, user, password)
        base = "".join(f"/{_name(part)}" for part in (*prefix.strip("/").split("/"), cluster))
        self._key = f"{base}/state".encode()
        self._members = f"{base}/members/".encode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._gateway.close()

    def get(self, timeout_s: float) -> Versioned:
        request = {"key": self._key}
        reply = self._gateway.call(RANGE, request, _RangeReply, timeout_s, repeatable=True)
        match reply.kvs:
            case []:
                return Versioned(None, 0)
            case [one] if self._is_state(one):
                return Versioned(ClusterState.decode(one.value), one.mod_revision)
        raise RegisterUnavailable("etcd replied with other keys than were asked for")

    def compare_and_set(self, state: ClusterState, revision: int, timeout_s: float) -> int | None:
        unchanged = {
            "key": self._key,
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": str(revision),
        }
        request = {
            "compare": [unchanged],
            "success": [{"request_put": {"key": self._key, "value": state.encode()}}],
            "failure": [{"request_range": {"key": self._key}}],
        }
        reply = self._gateway.call(TXN, request, _TxnReply, timeout_s, repeatable=False)
        match reply:
            case _TxnReply(
                succeeded=True,
                responses=[
                    _OperationReply(
                        response_put=GatewayReply(header=ResponseHeader(revision=written))
                    )
                ],
            ) if written > revision:
                return written
            case _TxnReply(
                succeeded=False, responses=[_OperationReply(response_range=_RangeReply(kvs=found))]
            ) if self._has_another_revision(found, revision):
                return None
        raise OutcomeUnknown("etcd replied to a transaction with what does not belong to it")

    def publish_member(
        self, node: str, info: Mapping[str, Any], ttl_s: float, timeout_s: float = TIMEOUT_S
    ) -> None:
        """List a node until `ttl_s` have passed; to be repeated before. Only informs.

        Each call takes a new lease, and the previous one expires without an effect. etcd extends
        a short time to 1.5 of its election timeouts.
        """
        grant = {"TTL": str(max(1, math.ceil(ttl_s)))}
        lease = self._gateway.call(GRANT, grant, _GrantReply, timeout_s, repeatable=True)
        put = {
            "key": self._members + _name(node).encode(),
            "value": _encoded(info),
            "lease": str(lease.ID),
        }
        self._gateway.call(PUT, put, GatewayReply, timeout_s, repeatable=True)

    def members(self, timeout_s: float = TIMEOUT_S) -> dict[str, dict[str, Any]]:
        """The listed nodes and what each published. Only informs; invalid entries are left out."""
        after = self._members[:-1] + b"0"  # the byte after the slash: all keys that begin with it
        request = {"key": self._members, "range_end": after}
        reply = self._gateway.call(RANGE, request, _RangeReply, timeout_s, repeatable=True)
        entries = ((found.key.removeprefix(self._members), found.value) for found in reply.kvs)
        return {
            node.decode(errors="replace"): info
            for node, value in entries
            if (info := _decoded(value)) is not None
        }

    def _is_state(self, found: _KeyValue) -> bool:
        return found.key == self._key and found.mod_revision > 0

    def _has_another_revision(self, found: tuple[_KeyValue, ...], revision: int) -> bool:
        match found:
            case []:
                return revision != 0
            case [one]:
                return self._is_state(one) and one.mod_revision != revision
        return False


def _name(text: str) -> str:
    if not text or "/" in text or not text.isprintable():
        raise BadRequest(f"{text!r} cannot be part of a key; use letters, digits and hyphens")
    return text


def _encoded(info: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(dict(info))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"a member cannot be published: {error}") from None


def _decoded(value: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None
