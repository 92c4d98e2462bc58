"""Several topics, and globs, read as one stream."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logd import Client, Reader
from logd.client.topics_reader import TopicMessage, TopicsReader
from logd.errors import BadRequest, NotFound
from logd.wire.addresses import ConnectionLost
from tests.support.daemon import Daemon, lasting_address, running, wait_until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path, "--host", lasting_address()) as started:
        yield started


def push(daemon: Daemon, *words: str) -> None:
    """`app:a` pushes a to app, each in a batch of its own and a later millisecond."""
    with Client(daemon.address) as client:
        for word in words:
            topic, _, message = word.partition(":")
            pushed = client.push(topic, [message.encode()])
            before = client.partitions(topic)[-1].max_time_ms
            while client.partitions("clock")[-1].max_time_ms <= before:
                client.push("clock", [b"tick"])
            assert pushed.messages == 1


@pytest.fixture
def clocked(daemon: Daemon) -> Daemon:
    with Client(daemon.address) as client:
        client.push("clock", [b"tick"])
    return daemon


def shown(messages: list[TopicMessage]) -> list[str]:
    return [f"{message.topic}:{message.value.decode()}" for message in messages]


def test_merged_by_time(clocked: Daemon) -> None:
    words = ["app:1", "web-b:2", "web-a:3", "app:4", "app:5", "web-b:6", "web-a:7", "other:8"]
    push(clocked, *words)
    with TopicsReader(clocked.address, ["app", "web-*"]) as reader:
        assert reader.topics == ["app", "web-a", "web-b"]
        messages = list(reader)
    assert shown(messages) == words[:-1]
    assert [m.offset for m in messages if m.topic == "app"] == [0, 1, 2]


def test_topic_by_topic(clocked: Daemon) -> None:
    push(clocked, "web-b:1", "app:2", "web-b:3")
    with TopicsReader(clocked.address, ["app", "web-*"], merge="arrival") as reader:
        assert shown(list(reader)) == ["app:2", "web-b:1", "web-b:3"]


@pytest.mark.parametrize("merge", ["time", "arrival"])
def test_followed_with_topics_that_come_later(clocked: Daemon, merge: str) -> None:
    push(clocked, "web-a:1")
    with TopicsReader(clocked.address, ["web-*"], follow=True, merge=merge) as reader:  # type: ignore[arg-type]
        messages = iter(reader)
        assert shown([next(messages)]) == ["web-a:1"]
        push(clocked, "web-b:2", "web-a:3")
        assert sorted(shown([next(messages), next(messages)])) == ["web-a:3", "web-b:2"]
        clocked.kill()
        clocked.start()
        push(clocked, "web-b:4", "web-c:5")
        assert sorted(shown([next(messages), next(messages)])) == ["web-b:4", "web-c:5"]


def test_a_connection_that_fails_among_new_topics_loses_none(
    clocked: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ConnectionLost("cut")]

    def unlucky(target: Any, topic: str, **options: Any) -> Reader:
        if topic == "web-b" and failures:
            raise failures.pop()
        return Reader(target, topic, **options)

    with TopicsReader(clocked.address, ["web-*"], follow=True) as reader:
        monkeypatch.setattr("logd.client.topics_reader.Reader", unlucky)
        push(clocked, "web-a:1", "web-b:2", "web-c:3")
        messages = iter(reader)
        assert sorted(shown([next(messages) for _ in range(3)])) == [
            "web-a:1",
            "web-b:2",
            "web-c:3",
        ]
    assert not failures


def test_closing_it_ends_its_threads(clocked: Daemon) -> None:
    push(clocked, *(f"web-{n}:x" for n in range(5)))
    before = set(threading.enumerate())  # one that another test left may end meanwhile
    with TopicsReader(clocked.address, ["web-*"], follow=True) as reader:
        messages = iter(reader)
        for _ in range(5):
            next(messages)
        push(clocked, "web-0:y")
        assert shown([next(messages)]) == ["web-0:y"]
        with Client(clocked.address) as client:
            wait_until(lambda: {client.stats(f"web-{n}")["followers"] for n in range(5)} == {"1"})
        assert len(set(threading.enumerate()) - before) == 5
    assert not set(threading.enumerate()) - before


def test_a_slow_program_gets_everything(clocked: Daemon) -> None:
    """More batches than the queue holds, from several threads at once, with nothing taken yet."""
    with TopicsReader(clocked.address, ["web-*"], follow=True) as reader:
        messages = iter(reader)
        for n in range(2):
            push(clocked, f"web-{n}:0")
        assert {next(messages).topic for _ in range(2)} == {"web-0", "web-1"}
        with Client(clocked.address) as client:
            for n in range(400):
                client.push(f"web-{n % 2}", [b"%d" % n, b"%d" % n])
        got = [next(messages) for _ in range(800)]
    for topic in ("web-0", "web-1"):
        assert [m.offset for m in got if m.topic == topic] == list(range(1, 401))


def test_what_cannot_be_read(clocked: Daemon) -> None:
    with pytest.raises(BadRequest, match="at least one"):
        TopicsReader(clocked.address, [])
    with TopicsReader(clocked.address, ["clock", "missing"]) as reader, pytest.raises(NotFound):
        list(reader)
    with TopicsReader(clocked.address, ["nothing-*"]) as reader:
        assert list(reader) == []
