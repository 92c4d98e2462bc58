"""A single message that comes by itself is stored at once, just as a turn would have stored it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from logd.batch import Buffer
from logd.errors import LogdError
from logd.storage import disk
from logd.storage.disk import File
from logd.storage.readable_range import NewestWrite
from logd.storage.single_push import SinglePushConnection
from logd.topic import LastSingle, Topic
from tests.support.topic_loop import Loop, Pushing, batch_of, close, create, push

SINGLES = [b"first\n", b"x" * 99 + b"\n", b"\n", b"last\n"]
POLICIES = ("interval", "batches", "never")


class Client(SinglePushConnection):
    """It sends one message at a time, and notes what it hears."""

    def __init__(self, topic: Topic) -> None:
        super().__init__()
        self.heard: list[bytes | LogdError] = []
        self.add_route(b"PUSH %s " % topic.name.encode(), 1 << 14, topic.singles)

    def send(self, topic: Topic, message: bytes) -> None:
        assert self.take_single(b"PUSH %s %d\r\n" % (topic.name.encode(), len(message)) + message)

    def make_single_slot(self) -> Any:
        return self

    def finish_single_reply(self, offset: int, sent: int) -> None:
        self.heard.append((b"OK %d 1\r\n" % offset)[sent:])

    def refused(self, error: LogdError) -> None:
        self.heard.append(error)


def started(directory: Path, loop: Loop, **settings: Any) -> Topic:
    """With one message, so that nothing has to be done before another is written."""
    LastSingle.at_s = 0.0  # by another loop's clock
    topic = create(directory, loop, **settings)
    assert push(topic, loop, batch_of([b"before"])).is_stored
    loop.pass_time(0.01)
    return topic


def stored(topic: Topic) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(topic.directory.glob("*.log")))


@pytest.mark.parametrize("fsync", POLICIES)
def test_files_and_statistics_are_those_of_a_turn(tmp_path: Path, fsync: str) -> None:
    """The same at the same times, by a turn and at once, with rolls in between."""
    found = []
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name, at_once in (("a", True), ("b", False)):
        loop = Loop()
        topic = started(tmp_path / name / "app", loop, fsync=fsync, partition_bytes=400)
        client = Client(topic)
        for n, message in enumerate(SINGLES * 5):
            if at_once:
                client.send(topic, message)
                loop.run()
                assert client.heard.pop() == b"OK %d 1\r\n" % (n + 1)
            else:
                assert push(topic, loop, batch_of([message[:-1]])).offset == n + 1
            assert topic.readable.next == n + 2
            loop.pass_time(0.01)
        stats = topic.stats()
        del stats["id"]
        found.append((stats, topic.stored_messages, topic.stored_bytes, stored(topic)))
        close(topic, loop)
    assert found[0] == found[1]


@pytest.mark.parametrize("fsync", POLICIES)
def test_it_is_answered_in_the_same_turn_of_the_loop(tmp_path: Path, fsync: str) -> None:
    loop = Loop()
    topic = started(tmp_path / "app", loop, fsync=fsync)
    client = Client(topic)
    for n, message in enumerate(SINGLES):
        client.send(topic, message)
        assert client.heard.pop() == b"OK %d 1\r\n" % (n + 1)
        loop.pass_time(0.01)


def test_with_always_it_is_answered_behind_the_sync(tmp_path: Path) -> None:
    loop = Loop()
    topic = started(tmp_path / "app", loop, fsync="always")
    client = Client(topic)
    client.send(topic, b"hello\n")
    assert (client.heard, topic.readable.next) == ([], 1)
    loop.pass_time(0.01)
    assert (client.heard, topic.readable.next) == ([b"OK 1 1\r\n"], 2)


def test_who_waits_gets_it_first_and_everything_is_counted_then(tmp_path: Path) -> None:
    loop = Loop()
    topic = started(tmp_path / "app", loop)
    client = Client(topic)
    seen: list[tuple[NewestWrite | None, int, int, int, int]] = []

    def wake() -> None:
        stats = topic.stats()
        counted = stats["next"], topic.stored_messages, stats["unsynced_batches"]
        seen.append((topic.waiting_readers.newest, *counted, len(client.heard)))

    topic.waiting_readers.add("one", wake)
    topic.waiting_readers.add("two", wake)
    client.send(topic, b"hello\n")
    assert client.heard == [b"OK 1 1\r\n"]
    (fresh, *counted), other = seen
    assert fresh is not None
    assert (fresh.offset, fresh.messages) == (1, 1)
    data = b"".join(map(bytes, fresh.buffers))
    assert (stored(topic)[-fresh.size :], len(data)) == (data, fresh.size)
    assert counted == [2, 2, 2, 0]  # and nobody was answered yet
    assert other == (fresh, *counted)
    assert topic.waiting_readers.newest is None


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    topic = started(tmp_path / "app", loop)
    client = Client(topic)
    before = stored(topic)
    real, real_cut = disk.write_at, disk.cut

    def some_of_it(file: File, buffers: Sequence[Buffer], position: int) -> None:
        real(file, [bytes(buffers[0])[:10]], position)
        raise OSError(errno.ENOSPC, "no space left on device")

    def no_cut(file: File, size: int) -> None:
        raise OSError(errno.EIO, "not now")

    monkeypatch.setattr(disk, "write_at", some_of_it)
    client.send(topic, b"hello\n")
    error = client.heard.pop()
    assert isinstance(error, LogdError)
    assert error.code == "no-space"
    assert (stored(topic), topic.readable.next, topic.stored_messages) == (before, 1, 1)
    monkeypatch.setattr(disk, "cut", no_cut)  # what is left of the next one stays for a while
    loop.pass_time(0.01)
    client.send(topic, b"hello\n")
    assert isinstance(client.heard.pop(), LogdError)
    assert stored(topic) == before + stored(topic)[len(before) :] != before
    monkeypatch.setattr(disk, "write_at", real)
    loop.pass_time(0.01)
    client.send(topic, b"hello\n")
    loop.run()
    assert isinstance(client.heard.pop(), LogdError)  # nothing is written behind that
    monkeypatch.setattr(disk, "cut", real_cut)
    loop.pass_time(0.01)
    client.send(topic, b"hello\n")
    loop.run()
    assert client.heard.pop() == b"OK 1 1\r\n"
    assert stored(topic).startswith(before + b"BATCH 1 1 6 ")


def test_no_room_is_kept_free(tmp_path: Path) -> None:
    loop = Loop()
    topic = started(tmp_path / "app", loop)
    client = Client(topic)
    topic.has_room = False
    client.send(topic, b"hello\n")
    loop.run()
    error = client.heard.pop()
    assert isinstance(error, LogdError)
    assert (error.code, topic.readable.next) == ("no-space", 1)


def test_behind_what_is_pending_it_waits_for_its_turn(tmp_path: Path) -> None:
    loop = Loop()
    topic = started(tmp_path / "app", loop)
    client, other = Client(topic), Pushing(batch_of([b"a", b"b"]))
    topic.push(other)
    client.send(topic, b"hello\n")
    assert client.heard == []
    loop.run()
    assert (other.offset, client.heard) == (1, [b"OK 3 1\r\n"])


def test_behind_a_roll_it_waits(tmp_path: Path) -> None:
    loop = Loop()
    topic = started(tmp_path / "app", loop, partition_bytes=1)
    client = Client(topic)
    client.send(topic, b"hello\n")
    assert client.heard == []
    loop.run()
    assert client.heard == [b"OK 1 1\r\n"]
    names = sorted(path.name for path in topic.directory.glob("*.log"))
    assert names == [f"{first:020d}.log" for first in (0, 1)]
