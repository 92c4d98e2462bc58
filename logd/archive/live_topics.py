"""What is still in the daemon: which topics, which offsets, and which of them are on its disk.

Only what a power cut cannot take any more is worth an archive: the daemon would hand out the same
offsets again for other messages. So the end of a topic is held back until it is synced.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from logd.archive.parquet import ParquetSource
from logd.batch import GAP
from logd.client.client import Client
from logd.errors import Faulted, NotFound, OutOfRange
from logd.wire.offset_ranges import OffsetRange, joined
from logd.wire.read_state import check
from logd.wire.requests import At

SYNC_S = 3.0  # longer than the default interval of syncs
_LOOK_S = 0.05


class LiveTopic(NamedTuple):
    """A topic of the daemon: from `first` up to `safe` on its disk, up to `next` readable."""

    topic: str
    id: str
    first: int
    safe: int
    next: int
    is_damaged: bool = False  # then nothing of it is safe before it is repaired

    @property
    def source(self) -> ParquetSource:
        return ParquetSource(self.topic, self.id)


def names(client: Client, patterns: list[str]) -> list[str]:
    """The daemon's topics that these names or globs mean; NotFound where a name means none."""
    found = dict.fromkeys(row.topic for each in patterns or ["*"] for row in client.topics(each))
    for pattern in patterns:
        if set(pattern).isdisjoint("*?[") and pattern not in found:
            raise NotFound(f"no topic {pattern}")
    return list(found)


def look(client: Client, topic: str, wait_s: float = SYNC_S) -> LiveTopic:
    """A topic as it is now, or a moment later when its end is synced."""
    end_s = time.monotonic() + wait_s
    while True:
        stats = client.stats(topic)
        first, next_ = int(stats["first"]), int(stats["next"])
        if stats["damages"] != "0":
            return LiveTopic(topic, stats["id"], first, first, next_, is_damaged=True)
        if stats["unsynced_batches"] == "0":
            return LiveTopic(topic, stats["id"], first, next_, next_)
        if time.monotonic() >= end_s:
            # All partitions but the newest were synced when they were sealed.
            newest = client.partitions(topic)[-1].first
            return LiveTopic(topic, stats["id"], first, max(first, min(newest, next_)), next_)
        time.sleep(_LOOK_S)


def offset_at(client: Client, topic: str, time_ms: int) -> int:
    """The first offset that is not older."""
    return client.read(topic, At(time_ms), 1, max_bytes=1).offset


def lost_within(client: Client, topic: str, range_: OffsetRange) -> list[OffsetRange]:
    """What of a range the daemon says is lost for good. Reads no more than that range."""
    at, found = range_.first, []
    while at < range_.next:
        reply = client.read(topic, at, range_.next - at)
        for batch in check(reply):
            if batch.header.enc == GAP:
                found.append(OffsetRange(max(at, batch.header.offset), batch.header.next))
        at = reply.offset + max(1, reply.messages)
    return joined(OffsetRange(first, min(next_, range_.next)) for first, next_ in found)


def same_topic(client: Client, live: LiveTopic) -> None:
    """Raise where a topic was made anew since it was looked at."""
    if client.stats(live.topic)["id"] != live.id:
        raise OutOfRange(f"{live.topic} was removed and made anew meanwhile; run this again")


def unread(topic: str, range_: OffsetRange) -> Faulted:
    return Faulted(f"offsets {range_} of {topic} could not be read; see `log-cli check`")
