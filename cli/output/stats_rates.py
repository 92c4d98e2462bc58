"""Counters of a daemon, and the rates between two samples of them. No input or output.

The size of a topic decreases when a partition expires: then its byte rate is not known.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logd.wire.commands import TopicInfo

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_TEXT_COUNTERS = ("topic", "id")  # text even if it consists of digits


class StatsSample(NamedTuple):
    """The replies to STATS and TOPICS at one time."""

    at_s: float
    daemon: dict[str, str]
    topics: dict[str, TopicInfo]


class TopicRate(NamedTuple):
    topic: str
    first: int
    next: int
    bytes: int
    messages_per_s: float
    bytes_per_s: float | None


class Rates(NamedTuple):
    """Rates between two samples; None if a rate is not known."""

    seconds: float
    messages_per_s: float | None
    bytes_per_s: float | None
    read_bytes_per_s: float | None
    topics: list[TopicRate]


def stat_value(name: str, text: str) -> int | str:
    """A value of STATS for JSON."""
    return int(text) if name not in _TEXT_COUNTERS and _NUMBER.fullmatch(text) else text


def rates_between(before: StatsSample, now: StatsSample) -> Rates:
    seconds = max(now.at_s - before.at_s, 1e-9)

    def per_s(name: str) -> float | None:
        grown = _count(now.daemon, name) - _count(before.daemon, name)
        return grown / seconds if grown >= 0 else None  # less than before: the daemon was restarted

    rates = [_topic(before.topics.get(name), info, seconds) for name, info in now.topics.items()]
    return Rates(
        seconds, per_s("stored_messages"), per_s("stored_bytes"), per_s("read_bytes"), rates
    )


def _count(counters: dict[str, str], name: str) -> int:
    text = counters.get(name, "0")
    return int(text) if text.isdecimal() else 0


def _topic(before: TopicInfo | None, now: TopicInfo, seconds: float) -> TopicRate:
    old_next = before.next if before else 0
    old_bytes = before.bytes if before else 0
    expired = before is not None and before.first != now.first
    return TopicRate(
        now.topic,
        now.first,
        now.next,
        now.bytes,
        max(0, now.next - old_next) / seconds,
        None if expired else max(0, now.bytes - old_bytes) / seconds,
    )


def busiest(topics: list[TopicRate], count: int) -> list[TopicRate]:
    """The topics with the highest rates, sorted by name."""
    chosen = sorted(topics, key=lambda topic: (-topic.messages_per_s, topic.topic))[:count]
    return sorted(chosen, key=lambda topic: topic.topic)
