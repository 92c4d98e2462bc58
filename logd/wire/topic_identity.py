"""Whether a topic has kept its messages while a client was not connected, according to STATS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TopicIdentity(NamedTuple):
    """A topic's random id, its number of recoveries, and the next offset after the last one."""

    id: str
    epoch: int
    began: int

    @classmethod
    def of(cls, stats: Mapping[str, str]) -> TopicIdentity:
        """ValueError: these are not the STATS of a topic."""
        try:
            return cls(stats["id"], int(stats["epoch"]), int(stats["epoch_began"]))
        except KeyError as error:
            raise ValueError(f"STATS reply lacks {error}") from None


def kept(before: TopicIdentity | None, now: TopicIdentity | None, offset: int) -> int:
    """Up to which offset, `offset` at most, a topic still has the messages that it had before.

    `before` is None for a topic that was created while the client was connected: its epoch was 1.
    `now` is None if the topic no longer exists.
    """
    if now is None or (before is not None and now.id != before.id):
        return 0
    epoch = before.epoch if before is not None else 1
    return min(offset, now.began) if now.epoch > epoch else offset
