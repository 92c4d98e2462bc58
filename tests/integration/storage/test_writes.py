"""What a topic writes in one turn, and when it goes on in a new file: no daemon, no clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logd import partition
from logd.protocol import Budget, Parser
from logd.storage import disk
from logd.storage.checkpoint import Checkpoint
from logd.topic import Topic
from logd.wire.requests import Pushes
from tests.support.topic_loop import Loop, Pushing, batch_of, close, create, new_topic, push


def arrive(topic: Topic, *contents: Any) -> list[Pushing]:
    """All in one turn of the loop."""
    pushes = [Pushing(content) for content in contents]
    for pushing in pushes:
        topic.push(pushing)
    return pushes


def plain(*bodies: bytes) -> list[Pushes]:
    """As one connection sends them, in one piece."""
    data = b"".join(b"PUSH app %d\r\n%s" % (len(body), body) for body in bodies)
    return Parser(1 << 20, Budget(1 << 30)).feed(data)  # type: ignore[return-value]


LARGE = b"x" * 20_000 + b"\n"
ARRIVALS = {
    "batches and plain pushes": [
        batch_of([b"a"]), *plain(b"b\n"), batch_of([b"c"]), *plain(b"d\n"), batch_of([b"e"]),
    ],
    "a run of large ones": plain(*[LARGE] * 12),
    "a run of more than a batch": plain(*[b"y" * 999 + b"\n"] * 300),
    "both": [*plain(b"b\n"), *plain(*[LARGE] * 3), *plain(b"b\n"), batch_of([b"c"])],
}  # fmt: skip


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.parametrize("fsync_batches", [1, 2, 5])
@pytest.mark.parametrize("arrivals", ARRIVALS.values(), ids=ARRIVALS)
def test_with_batches_never_more_than_twice_as_many_are_unsynced(
    tmp_path: Path, arrivals: list[Any], fsync_batches: int
) -> None:
    loop = Loop()
    topic = create(tmp_path / "app", loop, fsync="batches", fsync_batches=fsync_batches)
    most, pushes = 0, arrive(topic, *arrivals)
    while not all(pushing.is_stored for pushing in pushes):
        loop.step()
        most = max(most, topic.stats()["unsynced_batches"])
    assert most <= 2 * fsync_batches


@pytest.mark.usefixtures("no_syncs")
def test_a_partition_is_larger_than_its_limit_by_one_batch_at_most(tmp_path: Path) -> None:
    """Headers count: with small bodies they are most of the file."""
    loop, limit = Loop(), 1000
    topic = create(tmp_path / "app", loop, partition_bytes=limit)
    arrive(topic, *[batch_of([b"%d" % n]) for n in range(100)])
    loop.run()
    sizes = [partition.size for partition in topic.readable.partitions.values()]
    assert len(sizes) > 5
    assert max(sizes) < limit + 100


def test_what_was_refused_is_not_counted_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    topic = create(tmp_path / "app", loop)
    assert push(topic, loop, batch_of([b"0"])).is_stored
    before = topic.stored_messages, topic.stored_bytes

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", refuse)
        assert push(topic, loop, batch_of([b"a"])).error is not None
    assert (topic.stored_messages, topic.stored_bytes) == before
    assert push(topic, loop, batch_of([b"a", b"b"])).is_stored
    assert (topic.stored_messages, topic.stored_bytes) == (3, topic.readable.size)


@pytest.mark.parametrize("later_s", [39, 41])
def test_a_partition_gets_older_while_the_daemon_is_down(tmp_path: Path, later_s: int) -> None:
    loop, settings = Loop(), {"partition_age_s": 60.0}
    topic = create(tmp_path / "app", loop, **settings)
    push(topic, loop, batch_of([b"a"]))
    loop.time_s += 20
    push(topic, loop, batch_of([b"b"]))
    close(topic, loop)
    loop.time_s += later_s
    again = new_topic(tmp_path / "app", loop, **settings)
    again.open()
    push(again, loop, batch_of([b"c"]))
    assert len(again.readable.partitions) == (2 if later_s > 40 else 1)


STEPS = {"producers": (disk, "replace"), "file": (disk, "create"),
         "index": (partition, "File"), "checkpoint": (Checkpoint, "write")}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_stop_after_a_roll_that_failed_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The disk was full: no new partition, and no trace of one."""
    loop = Loop()
    topic = create(tmp_path / "app", loop, partition_bytes=1)
    push(topic, loop, batch_of([b"a"]))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*STEPS[step], refuse)
        assert push(topic, loop, batch_of([b"b"])).error is not None
    close(topic, loop)
    again = new_topic(tmp_path / "app", loop)
    assert again.open().clean
    assert again.stats()["epoch"] == 1
    assert push(again, loop, batch_of([b"b"])).offset == 1
