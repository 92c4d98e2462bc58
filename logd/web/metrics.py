"""`GET /metrics` for Prometheus. Values are read on request, so that counting costs pushes nothing.

Names begin with `logd_`, units are base units, counters end in `_total`. A label per topic is a
series per topic, so only the largest topics have their own; the others share `_other`.
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
from starlette.responses import Response

from logd import __version__
from logd.access.access_file import Grant
from logd.service import Service
from logd.web.request import HttpRequest

MAX_TOPICS = 200
OTHER = "_other"  # not a valid topic name

# By the name in STATS: name and help of the metric. Summed for topics that share a label.
COUNTERS = {
    "stored_messages": ("topic_stored_messages", "Messages stored since the start"),
    "stored_bytes": ("topic_stored_bytes", "Bytes stored since the start, headers included"),
}
GAUGES = {
    "first": ("topic_first_offset", "Oldest readable offset"),
    "next": ("topic_next_offset", "Offset of the next message"),
    "bytes": ("topic_bytes", "Bytes of the topic's partitions"),
    "partitions": ("topic_partitions", "Partitions of the topic"),
    "damages": ("topic_damages", "Damaged ranges; a damaged topic refuses writes"),
    "unsynced_batches": ("topic_unsynced_batches", "Batches not yet synced to disk"),
    "waiting_reads": ("topic_waiting_reads", "Reads waiting for a message"),
    "waiting_pushes": ("topic_waiting_pushes", "Pushes waiting for the disk"),
    "expired_waiting": ("topic_expired_waiting", "Expired partitions waiting for the delete hook"),
    "hook_failures": ("topic_hook_failures", "Consecutive failures of the delete hook"),
}


async def get_metrics(request: HttpRequest) -> Response:
    grant: Grant | None = request.scope.get("grant")
    if grant is not None:
        grant.check_rules()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(request.context.service))
    page = generate_latest(registry)
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


class ServiceCollector(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._daemon_metrics()
        yield from self._housekeeping_metrics()
        yield from self._topic_metrics()

    def _daemon_metrics(self) -> Iterator[Metric]:
        service, topics = self._service, list(self._service.store.topics.values())
        info = GaugeMetricFamily("logd_build_info", "Version of logd", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        for name, help_, value in (
            ("uptime_seconds", "Time since the start", time.time() - service.started_at),
            ("connections", "Open connections", service.connection_limits.open),
            ("topics", "Number of topics", len(topics)),
            ("faulted_topics", "Topics that refuse writes because of damage",
             sum(bool(topic.damages) for topic in topics)),
            ("disk_free_bytes", "Free bytes on the disk", service.store.free_bytes),
            ("resident_memory_bytes", "Resident memory", _resident_bytes()),
            ("open_descriptors", "Open files and sockets", len(os.listdir("/proc/self/fd"))),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"logd_{name}", help_, value=value)
        for name, help_, value in (
            ("reads", "Replies to READ and TAIL", service.counters["reads"]),
            ("read_bytes", "Bytes of these replies", service.counters["read_bytes"]),
            ("refused", "Commands answered with an error", service.counters["refused"]),
        ):  # fmt: skip
            yield CounterMetricFamily(f"logd_{name}", help_, value=value)

    def _housekeeping_metrics(self) -> Iterator[Metric]:
        failures = CounterMetricFamily(
            "logd_housekeeping_failures", "Failed runs of a task", labels=["task"]
        )
        since = GaugeMetricFamily(
            "logd_housekeeping_seconds_since_success",
            "Time since the last success of a task that runs once per second",
            labels=["task"],
        )
        tasks = self._service.periodic_tasks
        for task in tasks.tasks.values():
            failures.add_metric([task.name], task.failures)
            since.add_metric([task.name], tasks.since_success_s(task))
        yield failures
        yield since
        yield CounterMetricFamily(
            "logd_unexpected_errors",
            "Unexpected exceptions; see the log",
            value=tasks.unexpected_errors,
        )

    def _topic_metrics(self) -> Iterator[Metric]:
        values = _sum_by_label(self._service)
        for kind, families in ((CounterMetricFamily, COUNTERS), (GaugeMetricFamily, GAUGES)):
            for stat, (name, help_) in families.items():
                family = kind(f"logd_{name}", help_, labels=["topic"])
                for label, stats in values.items():
                    family.add_metric([label], stats.get(stat, 0))
                yield family


def _sum_by_label(service: Service) -> dict[str, dict[str, int]]:
    """The numbers in the STATS of each topic; those of the smallest topics are added up."""
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


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
