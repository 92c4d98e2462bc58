"""`log-cli stats --watch` and `log-cli bench`: rates, as lines, as JSON, and with a clean end."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from logd import Client
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.log_cli import fill, log_cli, started


def moments(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    moment: dict[str, Any] = json.loads(process.stdout.readline())
    return moment


def test_lines_where_stdout_is_no_terminal(daemon: Daemon) -> None:
    with (
        Client(daemon.address) as client,
        started(daemon, "stats", "--watch", "0.1") as process,
    ):
        assert process.stdout is not None
        while b" app: " not in (line := process.stdout.readline()):
            client.push("app", [b"hello"] * 100)
            assert line.split()[1] == b"all:"
        assert b"messages/s, " in line
        assert b", next " in line
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(HANG_S) == 130


def test_an_object_each_time(daemon: Daemon) -> None:
    fill(daemon, 10)
    with (
        Client(daemon.address) as client,
        started(daemon, "stats", "-w", "0.1", "-o", "json") as process,
    ):
        moment = moments(process)
        assert (moment["topics"], moment["faulted_topics"]) == (1, 0)
        # What is stored between the two questions of a moment counts for one of them only.
        while not (moment["messages_per_s"] and moment["by_topic"][0]["messages_per_s"]):
            client.push("app", [b"hello"] * 100)
            moment = moments(process)
        (app,) = moment["by_topic"]
        assert (app["topic"], app["first"], app["note"]) == ("app", 0, None)
        assert app["next"] >= 110
        assert app["messages_per_s"] > 0
        assert app["bytes_per_s"] > 0
        assert process.stdout is not None
        process.stdout.close()  # it notices while it waits for the next moment
        assert process.wait(HANG_S) == 0


def test_one_topic_of_two(daemon: Daemon) -> None:
    fill(daemon)
    log_cli(daemon, "write", "other", "x")
    with started(daemon, "stats", "other", "--watch", "0.1", "-o", "json") as process:
        by_topic = moments(process)["by_topic"]
    assert [row["topic"] for row in by_topic] == ["other"]


def test_what_waits_for_its_hook_is_told(tmp_path: Path) -> None:
    config = tmp_path / "logd.toml"
    config.write_text('delete-hook = ["/bin/false"]\n')
    flags = {"partition_bytes": 1, "max_partitions": 1, "config": config}
    with running(tmp_path, **flags) as daemon, Client(daemon.address) as client:
        for _ in range(3):
            client.push("app", [b"x"])
        with started(daemon, "stats", "--watch", "0.1", "-o", "json") as process:
            while "hook failed" not in (note := _note(moments(process))):
                pass
    assert "2 due" in note


def _note(moment: dict[str, Any]) -> str:
    return str(moment["by_topic"][0]["note"])


def test_a_faulted_topic_is_told(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fill(daemon)
        daemon.stop()
        (daemon.topic_dir("app") / "meta.json").unlink()
        daemon.start()
        with started(daemon, "stats", "--watch", "0.1") as process:
            assert process.stdout is not None
            assert process.stdout.readline().endswith(b"1 topic, 1 faulted\n")
            assert process.stdout.readline().endswith(b"next 3, faulted\n")


@pytest.mark.parametrize("seconds", ["0", "0.01", "99999"])
def test_no_such_pause(daemon: Daemon, seconds: str) -> None:
    assert log_cli(daemon, "stats", "--watch", seconds)[0] == 1


def test_a_daemon_that_stops_meanwhile(daemon: Daemon) -> None:
    with started(daemon, "stats", "--watch", "0.1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        daemon.stop()
        assert process.wait(HANG_S) == 1
        assert b"log-cli: " in process.stderr.read()


# -- bench --------------------------------------------------------------------------------------


def test_bench_leaves_a_topic_and_says_so(daemon: Daemon) -> None:
    options = ["--messages", "1003", "--size", "10", "--batch-bytes", "1000", "--read"]
    code, out, errors = log_cli(daemon, "bench", *options)
    assert code == 0
    with Client(daemon.address) as client:
        (info,) = client.topics()
    assert info.topic.startswith("bench-")
    assert info.next == 1003
    assert errors.startswith(f"log-cli: topic {info.topic} was not deleted")
    topic, push, latency, read = [line.split()[0] for line in out.decode().splitlines()]
    assert (topic, push, latency, read) == ("topic", "push", "latency", "read")
    assert b"(1003 messages in " in out
    assert b"(4012 messages in " in out  # four connections read all of it
    assert b"p99.9" in out


def test_bench_as_json_on_a_topic_of_ones_own(daemon: Daemon) -> None:
    words = ["bench", "mine", "--messages", "50", "--size", "0", "--connections", "3", "-o", "json"]
    code, out, errors = log_cli(daemon, *words)
    assert (code, errors) == (0, "")
    result = json.loads(out)
    assert (result["topic"], result["read"]) == ("mine", None)
    push = result["push"]
    assert (push["messages"], push["bytes"]) == (50, 0)
    assert push["messages_per_s"] > 0
    assert push["latency_ms"]["p50"] <= push["latency_ms"]["p100"]


def test_bench_that_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, max_batch_bytes=1000) as daemon:
        code, out, errors = log_cli(daemon, "bench", "--messages", "5000")
    assert (code, out) == (2, b"")
    assert "too-large" in errors
