"""Topics to copy, and what a copy must be: files that a start accepts without a word."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from logd import Client, Reader
from logd.batch import body_sum, encode_body
from logd.errors import DataDirError
from logd.offline import integrity
from logd.storage import recovery
from logd.wire.requests import Push
from tests.support.daemon import Daemon

PARTITION_BYTES = 2000
SETTINGS = ("--partition-bytes", str(PARTITION_BYTES), "--max-partitions", "4")


def daemon(data_dir: Path, *flags: str) -> Daemon:
    return Daemon(data_dir, (*SETTINGS, *flags))


def write(running: Daemon, topic: str, count: int) -> None:
    """Messages that say their own offset, one batch each, from a producer that numbers them."""
    with Client(running.address) as client:
        start = _next(client, topic)
        for offset in range(start, start + count):
            push_as(client, topic, message(topic, offset), f"p:{offset}")
        client.commit(topic, "reader", start + count)


def push_as(client: Client, topic: str, message: bytes, id_: str) -> int:
    body, enc = encode_body([message])
    return client.push_batch(Push(topic, body, enc, 1, body_sum(body), id_)).offset


def _next(client: Client, topic: str) -> int:
    names = {info.topic: info for info in client.topics()}
    return names[topic].next if topic in names else 0


def message(topic: str, offset: int) -> bytes:
    return f"{topic} {offset} ".encode() + b"x" * 60


def logs(topic_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(topic_dir.glob("*.log"))}


def visible(data_dir: Path) -> list[Path]:
    try:
        return integrity.topic_directories(data_dir, [])
    except DataDirError:
        return []


def assert_sound(data_dir: Path, scratch: Path) -> dict[str, tuple[int, int]]:
    """A check finds nothing, and a start has nothing to cut and nothing to say. Its ranges."""
    ranges = {}
    for directory in visible(data_dir):
        report = integrity.check(directory).report
        assert not report.damages, report.damages
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(directory, scratch)
        opened = recovery.open_topic(directory.name, scratch)
        assert opened.damages == ()
        assert not opened.cursors.notes
        ranges[directory.name] = (opened.state.first, opened.partitions[-1].next)
    return ranges


def assert_whole(data_dir: Path, scratch: Path) -> dict[str, tuple[int, int]]:
    """The same of a copy that was finished: nothing behind its checkpoint either."""
    for directory in visible(data_dir):
        assert not integrity.check(directory).report.cut_bytes
    return assert_sound(data_dir, scratch)


def assert_messages(running: Daemon, topic: str, first: int, next_: int) -> None:
    """All of them from `first` on, in order, and each what it was."""
    with Reader(running.address, topic, start="first") as reader:
        expected = first
        for got in reader:
            assert got.offset == expected
            assert got.value == message(topic, expected)
            expected += 1
    assert expected == next_


def tree(directory: Path) -> dict[str, bytes]:
    return {
        os.path.relpath(path, directory): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
