"""What a topic does with a partition that has expired: no daemon, and time stands still."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from logd.storage import disk
from logd.storage.retention import RetentionLimits
from logd.topic import Topic
from tests.integration.storage.small_log import read_slot, slots
from tests.support.topic_loop import Loop, Pushing, batch_of, close, create, new_topic, push


def topic_of(directory: Path, loop: Loop, count: int, **settings: object) -> Topic:
    """A topic of so many partitions of one message each, the last of them active."""
    topic = create(directory, loop, partition_bytes=1, **settings)
    for number in range(count):
        assert push(topic, loop, batch_of([b"%d" % number], id_=f"p:{number}")).is_stored
    return topic


def expire(topic: Topic, loop: Loop) -> None:
    topic.check_retention()
    loop.run()


def refuse_to_remove(path: Path) -> None:
    raise PermissionError(1, "Operation not permitted", str(path))


def logs(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def test_first_is_on_disk_before_a_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 5, max_partitions=2)
    removed, synced, remove, sync = [], [], disk.remove, disk.sync

    def noting_sync(file: disk.File) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file.fd}"))
        sync(file)

    def noting_remove(path: Path) -> None:
        data = (tmp_path / "app" / "checkpoint").read_bytes()
        first = max(filter(None, map(read_slot, slots(data)))).first
        assert int(path.stem) < first
        assert synced[-1].endswith("/checkpoint")
        removed.append(path.name)
        remove(path)

    monkeypatch.setattr(disk, "remove", noting_remove)
    monkeypatch.setattr(disk, "sync", noting_sync)
    expire(topic, loop)
    assert [int(name[:20]) for name in removed if name.endswith(".log")] == [0, 1, 2]
    assert logs(tmp_path / "app") == [3, 4]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(1, 9))
def test_killed_between_the_checkpoint_and_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """`first` does not go back, and a start removes what is left below it."""
    loop, directory = Loop(), tmp_path / "app"
    topic = topic_of(directory, loop, 5, max_partitions=2)
    left, remove = [step], disk.remove

    def dying_remove(path: Path) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", dying_remove)
        with pytest.raises(Killed):
            expire(topic, loop)
    again = new_topic(directory, Loop())
    assert again.open().damages == ()
    assert (again.readable.first, again.readable.next) == (3, 5)
    assert logs(directory) == [3, 4]
    assert sorted(directory.glob("*.index"))[0].stem == f"{3:020d}"


def test_retention_keeps_a_clean_stop_clean(tmp_path: Path) -> None:
    """A run that wrote nothing but let go of old files may be killed: nothing is to be checked."""
    loop, directory = Loop(), tmp_path / "app"
    close(topic_of(directory, loop, 5), loop)
    topic = new_topic(directory, loop, max_partitions=2)
    assert topic.open().clean
    expire(topic, loop)
    opened = new_topic(directory, Loop()).open()
    assert opened.clean
    assert opened.damages == ()
    assert opened.state.first == 3


def test_a_file_that_cannot_be_removed_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pushes are stored, and trying again does not become all that the topic does."""
    loop, directory = Loop(), tmp_path / "app"
    topic = topic_of(directory, loop, 4, max_partitions=2)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", refuse_to_remove)
        topic.check_retention()
        loop.run(most=500)
        assert push(topic, loop, batch_of([b"more"])).offset == 4
        topic.check_retention()
        loop.run(most=500)
    close(topic, loop)
    again = new_topic(directory, Loop())
    again.open()
    assert logs(directory)[0] == again.readable.first


def test_only_the_files_of_what_is_listed_are_left(tmp_path: Path) -> None:
    """Rolled and expired many times, a topic keeps the files of what it still has, and few more."""
    loop, directory = Loop(), tmp_path / "app"
    topic = topic_of(directory, loop, 1, max_partitions=1)
    for number in range(1, 20):
        push(topic, loop, batch_of([b"%d" % number], id_=f"p:{number}"))
        expire(topic, loop)
    assert logs(directory) == [19]
    stems = {path.stem for path in directory.iterdir() if path.suffix in (".index", ".ids")}
    assert len(stems) <= 2, sorted(stems)  # the producers of the last that went, at most


def test_what_is_none_of_its_own_is_neither_removed_nor_in_the_way(tmp_path: Path) -> None:
    loop, directory = Loop(), tmp_path / "app"
    topic = topic_of(directory, loop, 5, max_partitions=2)
    strangers = ["0.ids", "1x.ids", "1.log", "00000000000000000001.ids.bak"]
    for stranger in strangers:
        (directory / stranger).write_bytes(b"mine")
    expire(topic, loop)
    close(topic, loop)
    assert logs(directory) == [1, 3, 4]  # 1.log is not the partition of that number
    new_topic(directory, Loop()).open()
    assert all((directory / stranger).read_bytes() == b"mine" for stranger in strangers)


@pytest.mark.parametrize("is_clean", [True, False])
def test_producers_are_remembered_though_their_partitions_went(
    tmp_path: Path, is_clean: bool
) -> None:
    loop, directory = Loop(), tmp_path / "app"
    topic = topic_of(directory, loop, 5, max_partitions=1)
    expire(topic, loop)
    assert logs(directory) == [4]
    if is_clean:
        close(topic, loop)
    topic = new_topic(directory, loop)
    topic.open()
    for number in range(5):
        again = push(topic, loop, batch_of([b"%d" % number], id_=f"p:{number}"))
        assert (again.is_stored, again.offset, again.messages) == (True, number, 1)
    other = push(topic, loop, batch_of([b"else"], id_="p:2"))
    assert other.error is not None
    assert other.error.code == "conflict"
    ahead = push(topic, loop, batch_of([b"ahead"], id_="p:9"))
    assert ahead.error is not None
    assert "last=4" in ahead.error.text
    assert push(topic, loop, batch_of([b"5"], id_="p:5")).offset == 5


def test_without_limits_nothing_ever_goes(tmp_path: Path) -> None:
    loop = Loop()
    topic = topic_of(tmp_path / "app", loop, 5)
    loop.time_s += 10**9
    expire(topic, loop)
    assert logs(tmp_path / "app") == [0, 1, 2, 3, 4]


def test_age_is_that_of_the_newest_message_and_the_active_one_stays(tmp_path: Path) -> None:
    loop, directory = Loop(), tmp_path / "app"
    topic = create(directory, loop, partition_bytes=1, max_age_s=10.0)
    for _ in range(4):
        push(topic, loop, batch_of([b"x"]))
        loop.time_s += 5
    expire(topic, loop)
    assert logs(directory) == [2, 3]  # of 20, 15, 10 and 5 s
    loop.time_s += 1000
    expire(topic, loop)
    assert logs(directory) == [3]


def test_a_deletion_tried_again_does_not_forget_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, directory = Loop(), tmp_path / "app"
    topic = topic_of(directory, loop, 3, max_partitions=2)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", refuse_to_remove)
        expire(topic, loop)
    push(topic, loop, batch_of([b"more"]))
    topic._expiration.expire(topic.readable.partitions[1])  # and before its deletion has begun:
    expire(topic, loop)
    assert logs(directory) == [2, 3]


@pytest.mark.parametrize("closes", [False, True])
def test_a_deletion_that_cannot_be_noted_first_is_tried_again_in_peace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Pushes that come meanwhile have nothing to do with it, and a stop does not wait for it."""
    loop, directory, write_at = Loop(), tmp_path / "app", disk.write_at
    topic = topic_of(directory, loop, 4, max_partitions=2)

    def refuse(file: disk.File, buffers: list[bytes], position: int) -> None:
        if os.readlink(f"/proc/self/fd/{file.fd}").endswith("checkpoint"):
            raise OSError(errno.EIO, "Input/output error")
        write_at(file, buffers, position)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_at", refuse)
        topic.check_retention()
        loop.run(most=500)
        pushing = Pushing(batch_of([b"4"]))
        topic._config = replace(topic._config, partition_bytes=1000)
        topic.check_retention()
        topic.push(pushing)
        loop.run(most=500)
        assert pushing.is_stored
        if closes:
            close(topic, loop)
    assert logs(directory) == [0, 1, 2, 3]
    if not closes:
        expire(topic, loop)
        assert logs(directory) == [2, 3]


@pytest.mark.usefixtures("no_syncs")
def test_many_that_expire_at_once_do_not_hold_up_the_loop_or_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, directory = Loop(), tmp_path / "app"
    topic = topic_of(directory, loop, 200, max_partitions=1, fsync="always")
    looks, expired = [], RetentionLimits.expired

    def noting(self: RetentionLimits, *given: object) -> int:
        looks.append(True)
        return expired(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(RetentionLimits, "expired", noting)
    topic.check_retention()
    pushing = Pushing(batch_of([b"more"]))
    topic.push(pushing)
    while not pushing.is_stored:
        loop.step()
    removed = 200 - len(logs(directory)) + 1
    loop.run()
    assert logs(directory) == [199, 200]
    assert len(looks) < 10
    assert removed < 100, "the push waited for all of them"
