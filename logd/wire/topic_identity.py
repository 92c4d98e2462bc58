"""Is a topic still the one it was? What STATS says of that, before and after a lost connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TopicIdentity(NamedTuple):
    """A topic's random id, how often it was recovered, and at which offset that went on."""

    id: str
    epoch: int
    began: int

    @classmethod
    def of(cls, stats: Mapping[str, str]) -> TopicIdentity:
        """ValueError where these are not the STATS of a topic."""
        try:
            return cls(stats["id"], int(stats["epoch"]), int(stats["epoch_began"]))
        except KeyError as error:
            raise ValueError(f"STATS lack {error}") from None


def kept(before: TopicIdentity | None, now: TopicIdentity | None, offset: int) -> int:
    """Up to which offset, `offset` at most, a topic still has the messages it had before.

    `before` is None for a topic that was made while somebody looked: then its epoch was 1. `now` is
    None where there is no such topic any more.
    """
    if now is None or (before is not None and now.id != before.id):
        return 0
    epoch = before.epoch if before is not None else 1
    return min(offset, now.began) if now.epoch > epoch else offset
