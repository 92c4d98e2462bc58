"""Resolves the offset options of a query to the offsets that a topic has now."""

from __future__ import annotations

from collections.abc import Mapping

from logd.wire.offset_ranges import OffsetRange
from logd.wire.requests import At, Where
from pyspark_logd.data_loss import OnLoss
from pyspark_logd.errors import BadOption
from pyspark_logd.options import OffsetBound
from pyspark_logd.topic_sources import Extent, TopicSource


def resolve(bound: OffsetBound, topic: str, source: TopicSource, extent: Extent) -> int:
    """The offset of a bound. The topic may not have it."""
    where: Where = bound if not isinstance(bound, Mapping) else _of(bound, topic)
    if isinstance(where, At):
        return source.offset_at(topic, where)
    if isinstance(where, str):
        return {"first": extent.first, "next": extent.next}[where]
    return where


def _of(bounds: Mapping[str, Where], topic: str) -> Where:
    if topic not in bounds:
        raise BadOption(f"there is no offset for topic {topic}, which subscribePattern matches")
    return bounds[topic]


def within(topic: str, extent: Extent, start: int, stop: int, on_loss: OnLoss) -> OffsetRange:
    """The available offsets from `start` to before `stop`; missing ones are passed to `on_loss`."""
    start = min(start, stop)
    if start < (first := min(extent.first, stop)):
        on_loss(topic, start, first, "they have expired")
    if stop > (next_ := max(extent.next, start)):
        on_loss(topic, next_, stop, f"the topic ends at {extent.next}")
    return OffsetRange(max(start, extent.first), min(stop, extent.next))
