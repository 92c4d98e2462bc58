"""What the words of a query mean for a topic as it is now: which offsets are to be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from logd.wire.requests import At, Where
from pyspark_logd.data_loss import OnLoss
from pyspark_logd.errors import BadOption
from pyspark_logd.options import Edge
from pyspark_logd.topic_sources import Extent, TopicSource


class QueryRange(NamedTuple):
    """Offsets from `start` up to `stop`."""

    start: int
    stop: int


def resolve(edge: Edge, topic: str, place: TopicSource, extent: Extent) -> int:
    """The offset that an edge means. It may be one that is not there."""
    where: Where = edge if not isinstance(edge, Mapping) else _of(edge, topic)
    if isinstance(where, At):
        return place.offset_at(topic, where)
    if isinstance(where, str):
        return {"first": extent.first, "next": extent.next}[where]
    return where


def _of(edges: Mapping[str, Where], topic: str) -> Where:
    if topic not in edges:
        raise BadOption(f"no offset is given for topic {topic}, which the pattern also matches")
    return edges[topic]


def within(topic: str, extent: Extent, start: int, stop: int, on_loss: OnLoss) -> QueryRange:
    """What of the offsets from `start` up to `stop` is there; `on_loss` hears of the rest."""
    start, stop = min(start, stop), stop
    if start < (there := min(extent.first, stop)):
        on_loss(topic, start, there, "they have expired")
    if stop > (there := max(extent.next, start)):
        on_loss(topic, there, stop, f"the topic ends at {extent.next}")
    return QueryRange(max(start, extent.first), min(stop, extent.next))
