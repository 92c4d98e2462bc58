"""What Prometheus sees. Read from the service when it is asked for: counting costs pushes nothing.

Names begin with `logd_`, units are base units, counters end in `_total`. A label for each topic is
a series for each topic, so only the largest have one of their own; the others share `_other`.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from logd import __version__
from logd.service import Service

MAX_TOPICS = 200
OTHER = "_other"  # no topic can be called that

# By name in STATS: name of the metric, its help. Summed for topics without a label of their own.
COUNTERS = {
    "stored_messages": ("topic_stored_messages", "Messages stored since the start"),
    "stored_bytes": ("topic_stored_bytes", "Bytes stored since the start, headers included"),
}
GAUGES = {
    "first": ("topic_first_offset", "The oldest offset that can be read"),
    "next": ("topic_next_offset", "The offset that the next message gets"),
    "bytes": ("topic_bytes", "Bytes of the topic's partitions"),
    "partitions": ("topic_partitions", "Files of the topic"),
    "damages": ("topic_damages", "Damaged places; with any the topic takes no writes"),
    "unsynced_batches": ("topic_unsynced_batches", "Batches that are not known to be on disk"),
    "waiting_reads": ("topic_waiting_reads", "Readers that wait for a message"),
    "waiting_pushes": ("topic_waiting_pushes", "Pushes that wait for the disk"),
    "expired_waiting": ("topic_expired_waiting", "Partitions that wait for their delete hook"),
    "hook_failures": ("topic_hook_failures", "Failures of the delete hook in a row"),
}


class ServiceCollector(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_daemon()
        yield from self._of_topics()

    def _of_the_daemon(self) -> Iterator[Metric]:
        service, topics = self._service, list(self._service.store.topics.values())
        info = GaugeMetricFamily("logd_build_info", "Which logd this is", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        uptime_s = time.time() - service.started_at
        faulted = sum(bool(topic.damages) for topic in topics)
        yield _gauge("uptime_seconds", "Time since the start", uptime_s)
        yield _gauge("connections", "Connections that are open", service.connections)
        yield _gauge("topics", "Topics there are", len(topics))
        yield _gauge("faulted_topics", "Topics that take no writes because of damage", faulted)
        yield _gauge("disk_free_bytes", "Free for data on the disk", service.store.free_bytes)
        yield _gauge("resident_memory_bytes", "Memory in use", _resident_bytes())
        yield _gauge("open_descriptors", "Open files and sockets", len(os.listdir("/proc/self/fd")))
        yield _counter("reads", "Replies to READ and TAIL", service.counters["reads"])
        yield _counter("read_bytes", "Bytes of those replies", service.counters["read_bytes"])
        yield _counter("refused", "Commands answered with an error", service.counters["refused"])

        yield from self._of_housekeeping()

    def _of_housekeeping(self) -> Iterator[Metric]:
        housekeeping = self._service.housekeeping
        failures = CounterMetricFamily(
            "logd_housekeeping_failures", "Failed runs of a task", labels=["task"]
        )
        since = GaugeMetricFamily(
            "logd_housekeeping_seconds_since_success",
            "Time since a task last succeeded; it is run once per second",
            labels=["task"],
        )
        for task in housekeeping.tasks.values():
            failures.add_metric([task.name], task.failures)
            since.add_metric([task.name], housekeeping.since_success_s(task))
        yield failures
        yield since
        errors = housekeeping.unexpected_errors
        yield _counter("unexpected_errors", "Exceptions in the event loop, see the log", errors)

    def _of_topics(self) -> Iterator[Metric]:
        values = _by_label(self._service)
        for kind, families in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for stat, (name, help_) in families.items():
                family = kind(f"logd_{name}", help_, labels=["topic"])
                for label, stats in values.items():
                    family.add_metric([label], stats.get(stat, 0))
                yield family


def page(service: Service) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service))
    return generate_latest(registry)


def _by_label(service: Service) -> dict[str, dict[str, int]]:
    """The numbers in each topic's STATS; those of the smallest topics added up."""
    topics = [topic for topic in service.store.topics.values() if topic.ready]
    topics.sort(key=lambda topic: topic.readable.size, reverse=True)
    values: dict[str, dict[str, int]] = {}
    for i, topic in enumerate(topics):
        label = topic.name if i < MAX_TOPICS else OTHER
        summed = values.setdefault(label, defaultdict(int))
        for name, value in topic.stats().items():
            if isinstance(value, int):
                summed[name] += value
        summed["stored_messages"] += topic.stored_messages
        summed["stored_bytes"] += topic.stored_bytes
    return values


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"logd_{name}", help_, value=value)


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(f"logd_{name}", help_, value=value)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
