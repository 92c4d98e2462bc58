"""How far a streaming query is, as it stands in Spark's checkpoint.

    {"topics": {"app": {"id": "9f…", "epoch": 1, "began": 0, "cuts": [0, 500, 1000]}}}

Always: an offset tells by itself which messages its micro-batch has, and how they are split among
tasks. Spark may ask for the initial offset a second time when the first micro-batch is run again,
and then `latest` has moved on; and a replay has to give each task what it had, or a sink cannot
know it again. `cuts` has the start and the end and what is between; only one, where a topic has
nothing in this micro-batch. The id and the epoch say which topic that was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from logd.wire.topic_identity import TopicIdentity
from pyspark_logd.errors import BadOption


class StreamProgress(NamedTuple):
    """One topic in one micro-batch."""

    seen: TopicIdentity
    cuts: list[int]

    @property
    def start(self) -> int:
        return self.cuts[0]

    @property
    def next(self) -> int:
        return self.cuts[-1]


def to_json(topics: Mapping[str, StreamProgress]) -> dict[str, Any]:
    return {
        "topics": {
            topic: {**progress.seen._asdict(), "cuts": progress.cuts}
            for topic, progress in topics.items()
        }
    }


def from_json(offset: Mapping[str, Any]) -> dict[str, StreamProgress]:
    try:
        return {topic: _progress(found) for topic, found in offset["topics"].items()}
    except (KeyError, TypeError, AttributeError):
        raise BadOption(
            "the checkpoint has no offsets of logd; was it made by a query with another source?"
            " Give this query a checkpointLocation of its own"
        ) from None


def _progress(found: Mapping[str, Any]) -> StreamProgress:
    return StreamProgress(
        TopicIdentity(found["id"], found["epoch"], found["began"]), [*found["cuts"]]
    )


def fair_shares(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many messages of each topic come next: together `limit` at most, the fullest cut most."""
    shares, left = {}, limit
    by_size = sorted(waiting, key=lambda topic: waiting[topic])
    for i, topic in enumerate(by_size):
        share = -(-left // (len(by_size) - i))
        shares[topic] = min(waiting[topic], share)
        left -= shares[topic]
    return shares
