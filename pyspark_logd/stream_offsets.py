"""The position of a streaming query, as stored in Spark's checkpoint.

    {"topics": {"app": {"id": "9f…", "epoch": 1, "began": 0, "cuts": [0, 500, 1000]}}}

Invariant: the position alone determines the messages of its micro-batch and their distribution to
tasks. Spark may request the initial offset again when it repeats the first micro-batch, and
`latest` has advanced by then. A repeated micro-batch must give each task the same messages, or a
sink cannot recognize them. `cuts` has the bounds of the splits, or one offset if the topic has no
messages in this micro-batch. The id and the epoch identify the topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from logd.wire.topic_identity import TopicIdentity
from pyspark_logd.errors import BadOption


class StreamProgress(NamedTuple):
    """The part of one topic in a micro-batch."""

    identity: TopicIdentity
    cuts: list[int]

    @property
    def next(self) -> int:
        return self.cuts[-1]


def to_json(topics: Mapping[str, StreamProgress]) -> dict[str, Any]:
    return {
        "topics": {
            topic: {**progress.identity._asdict(), "cuts": progress.cuts}
            for topic, progress in topics.items()
        }
    }


def from_json(offset: Mapping[str, Any]) -> dict[str, StreamProgress]:
    try:
        return {topic: _progress(found) for topic, found in offset["topics"].items()}
    except (KeyError, TypeError, AttributeError):
        raise BadOption(
            "the checkpoint has no offsets of logd; it may belong to a query with another source."
            " Set another checkpointLocation"
        ) from None


def _progress(found: Mapping[str, Any]) -> StreamProgress:
    return StreamProgress(
        TopicIdentity(found["id"], found["epoch"], found["began"]), [*found["cuts"]]
    )


def limit_messages(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """Distribute `limit` messages among the topics as evenly as possible."""
    counts, left = {}, limit
    by_size = sorted(waiting, key=lambda topic: waiting[topic])
    for i, topic in enumerate(by_size):
        share = -(-left // (len(by_size) - i))
        counts[topic] = min(waiting[topic], share)
        left -= counts[topic]
    return counts
