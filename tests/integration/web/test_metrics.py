"""/metrics: what Prometheus can read, and what the traffic was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logd import Client
from logd.errors import LogdError
from logd.web.metrics import MAX_TOPICS, OTHER
from tests.integration.web import shippers
from tests.integration.web.conftest import Curl
from tests.support.daemon import Daemon, running, wait_until

Samples = dict[tuple[str, str], float]


def samples(curl: Curl) -> Samples:
    """Each sample by its name and its topic, as Prometheus' own parser sees them."""
    answer = curl("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def test_counters_are_the_traffic(curl: Curl, daemon: Daemon) -> None:
    before = samples(curl)
    with Client(daemon.address) as client:
        client.push("app", [b"x" * 9] * 3)
        curl("/topics/app", body=b"y\n" * 5)
        curl("/log", body=b"PUSH web 2\r\nz\n")
        read = client.read("app", 0, 10)
        curl("/topics/app/messages?format=raw")
        curl("/topics/app?id=me:1", body=b"once\n")
        assert curl("/topics/app?id=me:1", body=b"twice\n").status == 409
        assert curl("/topics/app/messages?from=99").status == 416
        with pytest.raises(LogdError):
            client.read("nope", 0)
        # The last curl has gone, but the daemon need not know it yet.
        wait_until(lambda: client.stats()["connections"] == "1")
        after = samples(curl)
        assert after["logd_topic_stored_messages_total", "app"] == 9
        assert after["logd_topic_stored_messages_total", "web"] == 1
        assert after["logd_topic_stored_bytes_total", "app"] == len(daemon.stored("app"))
        assert after["logd_topic_next_offset", "app"] == 9
        assert after["logd_topic_bytes", "app"] == len(daemon.stored("app"))
        assert after["logd_topics", ""] == 2
        assert after["logd_connections", ""] == 2  # this one, and curl's
    grown = {
        name: after[name, ""] - before.get((name, ""), 0) for name, topic in after if not topic
    }
    assert grown["logd_reads_total"] == 2
    assert grown["logd_read_bytes_total"] == len(read.data) * 2
    assert grown["logd_refused_total"] == 3


def test_restarted_counters_begin_again(tmp_path: Path) -> None:
    with running(tmp_path, "--http-host", "127.0.0.1:0") as daemon:
        with Client(daemon.address) as client:
            client.push("app", [b"x"])
        daemon.stop()
        daemon.start()
        found = samples(Curl(daemon))
        assert found["logd_topic_stored_messages_total", "app"] == 0
        assert found["logd_topic_next_offset", "app"] == 1


def test_the_smallest_of_many_topics_share_a_label(curl: Curl, daemon: Daemon) -> None:
    count = MAX_TOPICS + 50
    with Client(daemon.address) as client:
        for n in range(count):
            client.push(f"t{n:03d}", [b"x" * (1000 if n < MAX_TOPICS else 1)])
    found = samples(curl)
    labels = {topic for name, topic in found if name == "logd_topic_stored_messages_total"}
    assert labels == {OTHER, *(f"t{n:03d}" for n in range(MAX_TOPICS))}
    assert found["logd_topic_stored_messages_total", OTHER] == 50
    stored = [
        value for (name, _), value in found.items() if name == "logd_topic_stored_messages_total"
    ]
    assert sum(stored) == count


def test_promtool_finds_nothing_to_say(curl: Curl, daemon: Daemon) -> None:
    promtool = shippers.program("promtool")
    with Client(daemon.address) as client:
        client.push("app", [b"x"])
    page = curl("/metrics").body
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
