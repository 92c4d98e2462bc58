"""The data directory: its lock, and its topics by name.

Always: one daemon per directory; the name of a topic is the name of its directory, and only names
that the protocol accepts become paths.
"""

from __future__ import annotations

import fcntl
import fnmatch
import os
import shutil
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
from logd.storage.readable_range import OpenPartitions
from logd.storage.scheduler import Scheduler
from logd.topic import NO_ROOM, STOPPING, Topic
from logd.wire.requests import topic_name

_OPEN_PARTITIONS = 256
_CHECKED_PARTITIONS = 256  # partitions of topics that are not written to, per second
_SYNC_DISTANCE_S = 0.01  # syncs of two topics with more time between them do not delay each other


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
        self.free_bytes = 0  # at the last check
        self._unchecked: list[tuple[Topic, Partition]] = []  # by the current round of check_files
        self._is_checking_files = False
        self._files_error: BaseException | None = None
        self._lock: File | None = None

    def open(self) -> None:
        """Lock the directory and open every topic in it. Blocks."""
        disk.make_directories(self._directory.absolute())
        self._lock = lock(self._config.data_dir)
        for entry in sorted(os.scandir(self._directory), key=lambda entry: entry.name):
            if entry.name.startswith(topic_files.HIDDEN):
                shutil.rmtree(entry.path)  # its creation was interrupted
            elif entry.is_dir(follow_symlinks=False):
                self._open_topic(entry.name)
        disk.sync_directory(self._directory)
        self.check_room()

    def _open_topic(self, name: str) -> None:
        try:
            topic = self._new_topic(topic_name(os.fsencode(name)))
        except LogdError:
            place = f"{self._directory}/{name!a}"
            raise DataDirError(f"{place} is not a topic; move it to another directory") from None
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
        """May a topic sync on the event loop? Not if another one has just done so: then both use
        threads."""
        last, at_s = self._last_sync
        now_s = self._scheduler.monotonic_s()
        self._last_sync = (topic, now_s)
        return last is topic or now_s - at_s > _SYNC_DISTANCE_S

    def topic(self, name: str) -> Topic:
        """An existing topic."""
        topic = self.topics.get(name)
        if topic is None or not topic.ready:
            raise NotFound(f"no topic {name}; the first message written to it creates it")
        return topic

    def topic_to_write(self, name: str) -> Topic:
        """The topic of this name; created if necessary."""
        topic = self.topics.get(name)
        if topic is None:
            if self._is_closing:
                raise ShuttingDown(STOPPING)
            self._check_new(name)
            topic = self.topics[name] = self._new_topic(name)
            topic.create(failed=lambda: self.topics.pop(name, None))
        return topic

    def _check_new(self, name: str) -> None:
        """Raise if a topic of this name may not be created."""
        allowed = self._config.allow_topics
        if allowed and not any(fnmatch.fnmatchcase(name, glob) for glob in allowed):
            raise Forbidden(
                f"topic {name} may not be created; allow-topics lists the permitted names"
            )
        if len(self.topics) >= self._config.max_topics:
            raise TopicLimit(
                f"the limit of {self._config.max_topics} topics is reached; raise max-topics"
            )
        if not self._has_room:
            raise NoSpace(NO_ROOM)

    def configure(self, config: Config) -> list[str]:
        """Apply changed settings; returns the topics that keep their old fsync settings.
        `min-free-bytes` applies from the next check of the free space on."""
        self._config = config
        return [name for name, topic in self.topics.items() if not topic.configure(config)]

    def not_ready(self) -> list[str]:
        """Why pushes would be refused now; empty if they would not."""
        reasons = ["the daemon is stopping"] if self._is_closing else []
        if not self._has_room:
            reasons.append("the disk is full")
        return reasons

    def check_room(self) -> None:
        """Once per second: check the free space on the disk."""
        self.free_bytes = disk.free_bytes(self._directory)
        has_room = self.free_bytes >= self._config.min_free_bytes
        if has_room != self._has_room:
            self._has_room = has_room
            for topic in self.topics.values():
                topic.has_room = has_room

    def check_files(self) -> None:
        """Once per second: check that files have not been removed or replaced. Checks the active
        partition of each topic that was written to, and some of all others in turn."""
        error, self._files_error = self._files_error, None
        if error is not None:
            raise error
        if self._is_checking_files:
            return
        topics = [topic for topic in self.topics.values() if topic.ready and not topic.damages]
        chosen = [(topic, topic.active) for topic in topics if topic.was_written()]
        chosen += self._next_to_check(topics)

        def done(missing: Any, error: BaseException | None) -> None:
            self._is_checking_files, self._files_error = False, error
            for topic, partition in missing or ():
                topic.lose_files(partition)

        self._is_checking_files = True
        self._scheduler.offload(lambda: [one for one in chosen if not one[1].is_in_place()], done)

    def _next_to_check(self, topics: list[Topic]) -> list[tuple[Topic, Partition]]:
        """The next partitions of a round through all of them."""
        if not self._unchecked:
            self._unchecked = [
                (topic, part) for topic in topics for part in topic.readable.partitions.values()
            ]
        chosen = self._unchecked[-_CHECKED_PARTITIONS:]
        del self._unchecked[-_CHECKED_PARTITIONS:]
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
    """Lock the directory, while the file is open, against other daemons and repairs."""
    file = File(data_dir / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirError(
            f"{data_dir} is in use by another logd; stop it, or use another --data-dir"
        ) from None
    return file
