"""Which partitions of a topic have expired, and their deletion after their delete hook.

`RetentionLimits` decides, from sizes and times alone; the last partition never expires. Partitions
are deleted oldest first, and one delete hook runs at a time. A partition stays readable until its
hook has exited with 0. A hook that fails is run again after a growing pause, as long as the
partition exceeds a limit. Always: the new first offset is on disk before a file is deleted. A
deletion that fails is tried again at the next check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logd.config import Config
from logd.errors import LogdError
from logd.partition import Partition
from logd.storage import topic_files
from logd.storage.delete_hooks import Hook, RunningHooks, retry_pause_s, run_hook
from logd.storage.readable_range import ReadableRange
from logd.storage.scheduler import Scheduler

log = logging.getLogger("logd")
_MAX_DELETED = 16  # files per job, because syncs wait for it


class RetainedPartition(NamedTuple):
    """The size of a partition and its newest time."""

    size: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """0 means no limit."""

    max_partitions: int = 0
    max_bytes: int = 0
    max_age_s: float = 0.0

    def any(self) -> bool:
        return bool(self.max_partitions or self.max_bytes or self.max_age_s)

    def expired(self, partitions: Sequence[RetainedPartition], now_ms: int) -> int:
        """How many of the oldest partitions exceed a limit."""
        too_many = len(partitions) - self.max_partitions if self.max_partitions else 0
        oldest_ms = now_ms - self.max_age_s * 1000
        excess_bytes = sum(kept.size for kept in partitions) - self.max_bytes
        count = 0
        for kept in partitions[:-1]:
            too_old = self.max_age_s and kept.newest_ms < oldest_ms
            too_big = self.max_bytes and excess_bytes > 0
            if not (count < too_many or too_old or too_big):
                break
            excess_bytes -= kept.size
            count += 1
        return count


class ExpiringTopic(Protocol):
    """What expiration needs of its topic."""

    name: str
    directory: Path
    readable: ReadableRange

    def save_first(self) -> None:
        """Write the first offset to disk. Blocks."""

    def check_retention(self) -> None: ...
    def turn_soon(self) -> None: ...


class Expiration:
    def __init__(
        self, config: Config, scheduler: Scheduler, topic: ExpiringTopic, hooks: RunningHooks
    ) -> None:
        self.configure(config)
        self._scheduler, self._topic, self._running_hooks = scheduler, topic, hooks
        self.expired: list[Partition] = []  # no longer readable, but still on disk
        self._not_deleted: list[Partition] = []  # deleting them failed
        self._hooked: Partition | None = None  # its hook is running
        self._retry_at_s = 0.0
        self._due = 0
        self._failures = 0  # of hooks, in a row

    def configure(self, config: Config) -> None:
        """Apply the settings, at the start and after a reload; a running hook is not affected."""
        self._limits = RetentionLimits(config.max_partitions, config.max_bytes, config.max_age_s)
        self._command = config.delete_hook
        self._timeout_s = config.hook_timeout_s

    def is_hooked(self, partition: Partition) -> bool:
        """Is its delete hook running, which may move the file?"""
        return partition is self._hooked

    @property
    def is_busy(self) -> bool:
        return self._hooked is not None or bool(self.expired)

    def stats(self) -> dict[str, Any]:
        return {
            "expired_waiting": max(0, self._due - (self._hooked is not None)),
            "hook_running": self._hooked.path.name if self._hooked else "-",
            "hook_failures": self._failures,
        }

    def check(self) -> None:
        """Once per second, and after each hook: start what is due."""
        if self._not_deleted:
            self.expired += self._not_deleted
            self._not_deleted = []
            self._topic.turn_soon()
        if not self._limits.any() or self._hooked is not None:
            return
        partitions = list(self._topic.readable.partitions.values())
        retained = [RetainedPartition(part.size, part.max_time_ms) for part in partitions]
        self._due = self._limits.expired(retained, self._scheduler.now_ms())
        for partition in partitions[: self._due]:
            if self._command:
                if self._scheduler.monotonic_s() >= self._retry_at_s:
                    self._start_hook(partition)
                return
            self.expire(partition)
        self._due = 0

    def expire(self, partition: Partition) -> None:
        """Remove a partition from the readable range, and have its files deleted."""
        self._topic.readable.remove(partition)
        partition.close()
        self.expired.append(partition)
        self._topic.turn_soon()

    def delete(self) -> Callable[[], None]:
        """Delete files of expired partitions. Blocks; what it returns runs on the event loop."""
        chosen = self.expired[:_MAX_DELETED]
        left = list(chosen)
        with suppress(OSError):
            self._topic.save_first()
            for partition in chosen:
                with suppress(OSError):
                    topic_files.remove(partition)
                    left.remove(partition)
            if not left:
                topic_files.remove_old_ids(self._topic.directory, self._topic.readable.first)

        def finish() -> None:
            del self.expired[: len(chosen)]
            self._not_deleted += left

        return finish

    # -- delete hooks ---------------------------------------------------------------------------

    def _start_hook(self, partition: Partition) -> None:
        hook = Hook(self._command, partition.path, self._variables(partition), self._timeout_s)
        self._hooked = partition

        def done(succeeded: Any, error: BaseException | None) -> None:
            self._hooked = None
            if succeeded or self._is_removed(partition):
                self._failures = 0
                self._due -= 1
                self.expire(partition)
            else:
                self._failures += 1
                self._retry_at_s = self._scheduler.monotonic_s() + retry_pause_s(self._failures)
            self._topic.turn_soon()
            self._scheduler.soon(self._check_again)

        self._scheduler.offload_hook(lambda: run_hook(hook, self._running_hooks), done)

    def _check_again(self) -> None:
        with suppress(LogdError, OSError):  # the next periodic check meets and reports it
            self._topic.check_retention()

    def _is_removed(self, partition: Partition) -> bool:
        """Has a hook that failed removed the file? Then there is nothing to try again."""
        if partition.is_in_place():
            return False
        log.error(
            "the delete hook of topic %s failed but removed %s; its messages are no longer in the"
            " topic", self._topic.name, partition.path.name,
        )  # fmt: skip
        return True

    def _variables(self, partition: Partition) -> dict[str, str]:
        values = {
            "TOPIC": self._topic.name,
            "PARTITION": partition.path.name,
            "FIRST": partition.first,
            "NEXT": partition.next,
            "BYTES": partition.size,
            "MIN_TIME": partition.min_time_ms,
            "MAX_TIME": partition.max_time_ms,
        }
        return {f"LOGD_{name}": str(value) for name, value in values.items()}
