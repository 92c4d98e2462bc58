"""The register: the one value on which the nodes of a cluster agree, and the interface to it.

A value is replaced only by a compare-and-set on the revision at which it was read. The errors tell
the caller what it may conclude: after RegisterUnavailable nothing has changed and nothing will;
after OutcomeUnknown the change may be applied, even later, and reading the old revision proves
nothing. An implementation therefore never sends the same change twice on its own, unless the server
said that it refused the first one. Knows nothing about etcd.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from logd.errors import InvalidState

_NODE = re.compile(r"[!-~]{1,255}")
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Who leads, since which epoch, and which nodes have everything that was acknowledged."""

    epoch: int
    leader: str
    in_sync: tuple[str, ...]  # sorted, whatever the order in which they were given
    min_in_sync: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_sync", tuple(sorted(self.in_sync)))
        if not (0 <= self.epoch <= _MOST and 0 < self.min_in_sync <= _MOST):
            raise InvalidState(f"epoch {self.epoch} or min {self.min_in_sync} is out of range")
        for node in (self.leader, *self.in_sync):
            if _NODE.fullmatch(node) is None:
                raise InvalidState(f"{node[:300]!r} is not the id of a node")
        if not self.in_sync or len({*self.in_sync}) < len(self.in_sync):
            raise InvalidState("in_sync must name at least one node, and each node once")

    def encode(self) -> bytes:
        return msgspec.json.encode(
            _StateFields(self.epoch, self.leader, self.in_sync, self.min_in_sync)
        )

    @classmethod
    def decode(cls, data: bytes) -> ClusterState:
        """InvalidState for anything that `encode` cannot have written, except spaces and order."""
        try:
            fields = _decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidState(f"the state of the cluster cannot be read: {error}") from None
        return cls(fields.epoch, fields.leader, fields.in_sync, fields.min)


class _StateFields(msgspec.Struct, forbid_unknown_fields=True):
    epoch: int
    leader: str
    in_sync: tuple[str, ...]
    min: int


_decoder = msgspec.json.Decoder(_StateFields)


class Versioned(NamedTuple):
    """A state and the revision at which it was written; None and 0 if there is none yet."""

    state: ClusterState | None
    revision: int


class Register(Protocol):
    """Both methods block for at most about `timeout_s`; the daemon calls them on a thread."""

    def get(self, timeout_s: float) -> Versioned:
        """The newest state (a linearizable read); RegisterUnavailable or InvalidState."""

    def compare_and_set(self, state: ClusterState, revision: int, timeout_s: float) -> int | None:
        """Write `state` if the revision is still this one (0: if there is no state).

        The new revision, or None if it was another one. RegisterUnavailable: not changed.
        OutcomeUnknown: changed, or not, or changed later.
        """
