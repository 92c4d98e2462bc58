"""The topics of the daemon: which offsets they have, and which of these are synced.

Only synced messages are archived: after a power failure, the daemon would assign unsynced offsets
to other messages. So the unsynced end of a topic is left for a later run.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from logd.archive.parquet import ArchivedTopic
from logd.batch import GAP
from logd.client.client import Client
from logd.errors import NotFound
from logd.wire.offset_ranges import OffsetRange, merge
from logd.wire.read_state import check
from logd.wire.requests import At

SYNC_S = 3.0  # longer than the default fsync interval
_POLL_S = 0.05


class DaemonTopic(NamedTuple):
    """A topic: offsets before `safe` are synced, those before `next` are readable."""

    topic: str
    id: str
    first: int
    safe: int
    next: int
    is_damaged: bool = False  # then nothing is archived until it is repaired

    @property
    def source(self) -> ArchivedTopic:
        return ArchivedTopic(self.topic, self.id)


def names(client: Client, patterns: list[str]) -> list[str]:
    """The topics that match these names or globs; NotFound if a name matches none."""
    found = dict.fromkeys(row.topic for each in patterns or ["*"] for row in client.topics(each))
    for pattern in patterns:
        if set(pattern).isdisjoint("*?[") and pattern not in found:
            raise NotFound(f"no topic {pattern}")
    return list(found)


def inspect_topic(client: Client, topic: str, wait_s: float = SYNC_S) -> DaemonTopic:
    """The offsets of a topic. Waits up to `wait_s` until its end is synced."""
    end_s = time.monotonic() + wait_s
    while True:
        stats = client.stats(topic)
        first, next_ = int(stats["first"]), int(stats["next"])
        if stats["damages"] != "0":
            return DaemonTopic(topic, stats["id"], first, first, next_, is_damaged=True)
        if stats["unsynced_batches"] == "0":
            return DaemonTopic(topic, stats["id"], first, next_, next_)
        if time.monotonic() >= end_s:
            # All partitions except the newest were synced when they were closed.
            newest = client.partitions(topic)[-1].first
            return DaemonTopic(topic, stats["id"], first, max(first, min(newest, next_)), next_)
        time.sleep(_POLL_S)


def offset_at(client: Client, topic: str, time_ms: int) -> int:
    """The first offset that is not older than `time_ms`."""
    return client.read(topic, At(time_ms), 1, max_bytes=1).offset


def lost_within(client: Client, topic: str, range_: OffsetRange) -> list[OffsetRange]:
    """The gaps of the daemon within a range. Reads only that range."""
    at, found = range_.first, []
    while at < range_.next:
        reply = client.read(topic, at, range_.next - at)
        for batch in check(reply):
            if batch.header.enc == GAP:
                found.append(OffsetRange(max(at, batch.header.offset), batch.header.next))
        at = reply.offset + max(1, reply.messages)
    return merge(OffsetRange(first, min(next_, range_.next)) for first, next_ in found)
