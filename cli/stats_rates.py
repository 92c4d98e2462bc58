"""What a daemon counts at one moment, and what lies between two of them. Numbers in, numbers out.

A topic's bytes go down when a partition expires: then its rate is not known for that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logd.wire.commands import TopicInfo


class StatsSample(NamedTuple):
    """One moment: when, what STATS says, and what TOPICS says."""

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
    """The time between two samples; per second, None where it is not known."""

    seconds: float
    messages_per_s: float | None
    bytes_per_s: float | None
    read_bytes_per_s: float | None
    topics: list[TopicRate]


def between(before: StatsSample, now: StatsSample) -> Rates:
    seconds = max(now.at_s - before.at_s, 1e-9)

    def per_s(name: str) -> float | None:
        grown = _count(now.daemon, name) - _count(before.daemon, name)
        return grown / seconds if grown >= 0 else None  # less than before: another daemon

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


def chosen(topics: list[TopicRate], most: int) -> list[TopicRate]:
    """So many of them: the busiest, in the order of their names."""
    busiest = sorted(topics, key=lambda topic: (-topic.messages_per_s, topic.topic))[:most]
    return sorted(busiest, key=lambda topic: topic.topic)
