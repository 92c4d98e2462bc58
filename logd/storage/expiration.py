"""A topic's retention at work: which partition goes next, and its hook before that.

One hook at a time for a topic, oldest partition first; until it has exited 0 the partition stays
readable. What fails is tried again after growing pauses, for as long as the partition is due.
Deleting is the topic's business: it hears of what may go through `let_go`, and that a hook has
ended through `ended`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from logd.config import Config
from logd.partition import Partition
from logd.storage.delete_hooks import Hook, RunningHook, pause_s, run_hook
from logd.storage.readable_range import ReadableRange
from logd.storage.retention import RetainedPartition, RetentionLimits

log = logging.getLogger("logd")


class Expiration:
    def __init__(
        self,
        topic: str,
        config: Config,
        view: ReadableRange,
        running: RunningHook,
        offload_hook: Callable[
            [Callable[[], bool], Callable[[Any, BaseException | None], None]], None
        ],
        let_go: Callable[[Partition], None],
        ended: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        self._topic = topic
        self.configure(config)
        self._view = view
        self._running = running
        self._offload_hook = offload_hook
        self._let_go, self._ended, self._now_s = let_go, ended, now_s
        self._hooked: Partition | None = None  # its hook is under way
        self._retry_at_s = 0.0
        self._due = 0
        self.failures = 0  # in a row

    def configure(self, config: Config) -> None:
        """The settings, at the start and after a reload; a hook under way goes on as it began."""
        self._limits = RetentionLimits(config.max_partitions, config.max_bytes, config.max_age_s)
        self._command = config.delete_hook
        self._timeout_s = config.hook_timeout_s

    def is_hooked(self, partition: Partition) -> bool:
        """Does the delete hook have it, which may move its file away?"""
        return partition is self._hooked

    @property
    def is_busy(self) -> bool:
        return self._hooked is not None

    def stats(self) -> dict[str, Any]:
        return {
            "expired_waiting": max(0, self._due - (self._hooked is not None)),
            "hook_running": self._hooked.path.name if self._hooked else "-",
            "hook_failures": self.failures,
        }

    def check(self, now_ms: int) -> None:
        """Once a second, and after a hook: let go of what may go."""
        if not self._limits.any() or self._hooked is not None:
            return
        partitions = list(self._view.partitions.values())
        kept = [
            RetainedPartition(partition.size, partition.max_time_ms) for partition in partitions
        ]
        self._due = self._limits.expired(kept, now_ms)
        for partition in partitions[: self._due]:
            if self._command:
                if self._now_s() >= self._retry_at_s:
                    self._run(partition)
                return
            self._let_go(partition)
        self._due = 0

    def _run(self, partition: Partition) -> None:
        hook = Hook(self._command, partition.path, self._variables(partition), self._timeout_s)
        self._hooked = partition

        def done(succeeded: Any, error: BaseException | None) -> None:
            self._hooked = None
            if succeeded or self._is_removed(partition):
                self.failures = 0
                self._due -= 1
                self._let_go(partition)
            else:
                self.failures += 1
                self._retry_at_s = self._now_s() + pause_s(self.failures)
            self._ended()

        self._offload_hook(lambda: run_hook(hook, self._running), done)

    def _is_removed(self, partition: Partition) -> bool:
        """Has a hook that failed moved the file away? Then there is nothing to try again."""
        if partition.is_in_place():
            return False
        log.error(
            "delete hook of topic %s has removed the file %s although it failed; its messages"
            " have left the topic", self._topic, partition.path.name,
        )  # fmt: skip
        return True

    def _variables(self, partition: Partition) -> dict[str, str]:
        values = {
            "TOPIC": self._topic,
            "PARTITION": partition.path.name,
            "FIRST": partition.first,
            "NEXT": partition.next,
            "BYTES": partition.size,
            "MIN_TIME": partition.min_time_ms,
            "MAX_TIME": partition.max_time_ms,
        }
        return {f"LOGD_{name}": str(value) for name, value in values.items()}
