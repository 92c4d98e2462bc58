"""The data directory: its lock, its topics by name, how many there may be.

Always: one daemon per directory; a topic's name is its directory's name, and only names that the
protocol accepts ever become paths.
"""

from __future__ import annotations

import fcntl
import fnmatch
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logd.config import Config
from logd.errors import (
    DataDirError,
    Forbidden,
    LogdError,
    NoSpace,
    NotFound,
    ShuttingDown,
    TopicLimit,
)
from logd.partition import Partition
from logd.repair import RepairReport
from logd.storage import disk, topic_files
from logd.storage.delete_hooks import RunningHooks
from logd.storage.disk import File
from logd.storage.periodic_tasks import for_each
from logd.storage.scheduler import Scheduler
from logd.topic import NO_ROOM, STOPPING, Topic
from logd.wire.requests import topic_name

_OPEN_PARTITIONS = 256
_CHECKED_AT_ONCE = 256  # files of topics that nobody writes to, per second
_APART_S = 0.01  # syncs of two topics further apart than this do not hold each other up


class OpenPartitions:
    """The sealed partitions read last keep their descriptor; the others let go of it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: OrderedDict[Partition, None] = OrderedDict()

    def mark_used(self, partition: Partition) -> None:
        self._open[partition] = None
        self._open.move_to_end(partition)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)[0].release()


class Store:
    def __init__(self, config: Config, scheduler: Scheduler) -> None:
        self.topics: dict[str, Topic] = {}
        self.reports: list[RepairReport] = []
        self._config = config
        self._scheduler = scheduler
        self._directory = config.data_dir / "topics"
        self._open_partitions = OpenPartitions(_OPEN_PARTITIONS)
        self.running_hooks = RunningHooks()
        self._last_sync: tuple[object, float] = (None, 0.0)
        self._is_closing = False
        self._has_room = True
        self.free_bytes = 0  # as of the last check
        self._unchecked: list[tuple[Topic, Partition]] = []  # since all were, by check_files
        self._looks_for_files = False
        self._files_error: BaseException | None = None
        self._lock: File | None = None

    def open(self) -> None:
        """Lock the directory and open every topic in it. Blocks."""
        disk.make_directories(self._directory.absolute())
        self._lock = lock(self._config.data_dir)
        for entry in sorted(os.scandir(self._directory), key=lambda entry: entry.name):
            if entry.name.startswith(topic_files.HIDDEN):
                shutil.rmtree(entry.path)  # a topic that was never finished
            elif entry.is_dir(follow_symlinks=False):
                self._open_topic(entry.name)
        disk.sync_directory(self._directory)
        self.check_room()

    def _open_topic(self, name: str) -> None:
        try:
            topic = self._new_topic(topic_name(os.fsencode(name)))
        except LogdError:
            place = f"{self._directory}/{name!a}"
            raise DataDirError(f"{place} is not a topic; move it away") from None
        opened = topic.open()
        if opened.report:
            self.reports.append(opened.report)
        self.topics[name] = topic

    def _new_topic(self, name: str) -> Topic:
        topic = Topic(
            name,
            self._directory / name,
            self._config,
            self._scheduler,
            self.running_hooks,
            self._open_partitions.mark_used,
            self._may_block,
        )
        topic.has_room = self._has_room
        return topic

    def _may_block(self, topic: object) -> bool:
        """Has no other topic synced on the loop lately? Side by side they go to threads."""
        last, at_s = self._last_sync
        now_s = self._scheduler.monotonic_s()
        self._last_sync = (topic, now_s)
        return last is topic or now_s - at_s > _APART_S

    def topic(self, name: str) -> Topic:
        """An existing topic."""
        topic = self.topics.get(name)
        if topic is None or not topic.ready:
            raise NotFound(f"no topic {name}; the first message written to it creates it")
        return topic

    def topic_to_write(self, name: str) -> Topic:
        """The topic of this name, made if need be."""
        topic = self.topics.get(name)
        if topic is None:
            if self._is_closing:
                raise ShuttingDown(STOPPING)
            self._check_new(name)
            topic = self.topics[name] = self._new_topic(name)
            topic.create(failed=lambda error: self._forget(name))
        return topic

    def _check_new(self, name: str) -> None:
        """May a topic of this name be made?"""
        allowed = self._config.allow_topics
        if allowed and not any(fnmatch.fnmatchcase(name, glob) for glob in allowed):
            raise Forbidden(f"no topic {name} may be made here; allow-topics has those that may")
        if len(self.topics) >= self._config.max_topics:
            raise TopicLimit(f"max-topics is {self._config.max_topics}, and reached; raise it")
        if not self._has_room:
            raise NoSpace(NO_ROOM)

    def _forget(self, name: str) -> None:
        self.topics.pop(name, None)

    def configure(self, config: Config) -> list[str]:
        """Take other settings while at work, `min-free-bytes` at the next check of the free space;
        the topics that keep their way of syncing so far."""
        self._config = config
        return [name for name, topic in self.topics.items() if not topic.configure(config)]

    def not_ready(self) -> list[str]:
        """Why pushes would be refused now, if they would."""
        reasons = ["the daemon is stopping"] if self._is_closing else []
        if not self._has_room:
            reasons.append("the disk is full")
        return reasons

    def check_room(self) -> None:
        """Once a second: is there as much room on the disk as there is to be?"""
        self.free_bytes = disk.free_bytes(self._directory)
        has_room = self.free_bytes >= self._config.min_free_bytes
        if has_room != self._has_room:
            self._has_room = has_room
            for topic in self.topics.values():
                topic.has_room = has_room

    def check_files(self) -> None:
        """Once per second: has somebody removed or replaced files of topics? Of each topic that was
        written to the newest file is looked for, and some of all others in turn, off the loop."""
        error, self._files_error = self._files_error, None
        if error is not None:
            raise error
        if self._looks_for_files:
            return
        topics = [topic for topic in self.topics.values() if topic.ready and not topic.damages]
        chosen = [(topic, topic.active) for topic in topics if topic.was_written()]
        chosen += self._next_to_check(topics)

        def done(missing: Any, error: BaseException | None) -> None:
            self._looks_for_files, self._files_error = False, error
            for topic, partition in missing or ():
                topic.lose_files(partition)

        self._looks_for_files = True
        self._scheduler.offload(lambda: [one for one in chosen if not one[1].is_in_place()], done)

    def _next_to_check(self, topics: list[Topic]) -> list[tuple[Topic, Partition]]:
        """The next few of all partitions, round and round."""
        if not self._unchecked:
            self._unchecked = [
                (topic, part) for topic in topics for part in topic.readable.partitions.values()
            ]
        chosen = self._unchecked[-_CHECKED_AT_ONCE:]
        del self._unchecked[-_CHECKED_AT_ONCE:]
        return chosen

    def check_retention(self) -> None:
        for_each(list(self.topics.values()), lambda topic: topic.check_retention())

    def close(self, closed: Callable[[], None]) -> None:
        """Finish all writes, sync and close every topic, then call `closed`."""
        self._is_closing = True
        waiting = set(self.topics)

        def topic_closed(name: str) -> None:
            waiting.discard(name)
            if not waiting:
                closed()

        if not waiting:
            closed()
        for name, topic in list(self.topics.items()):
            topic.close(lambda name=name: topic_closed(name))  # type: ignore[misc]


def lock(data_dir: Path) -> File:
    """Held for as long as the file lives: no other logd, and no repair, may use the directory."""
    file = File(data_dir / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirError(
            f"{data_dir} is in use by another logd; stop it, or use another --data-dir"
        ) from None
    return file
