"""When a topic's log is synced, and what a finished sync means for the pushes that wait for it.

The decisions are those of `GroupCommit` and `FsyncPolicy`; this object has the clock and the
timers. A sync runs as the topic's background job, or on the event loop if syncs are fast. Always:
what a sync covers is what was written before it started, and with fsync=always a push is
acknowledged, and becomes readable, only after a sync that covers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from logd.errors import LogdError
from logd.partition import Partition
from logd.storage.disk import SyncFailed
from logd.storage.fsync_policy import FsyncPolicy
from logd.storage.group_commit import GroupCommit, LogPosition
from logd.storage.scheduler import BackgroundJob, Scheduler, Timer
from logd.storage.single_push import Singles


class SyncedTopic(Protocol):
    """What the sync needs of its topic."""

    active: Partition

    def publish(self, end: LogPosition) -> None: ...
    def save_progress(self, end: LogPosition, now_s: float) -> None: ...
    def lose_files(self, partition: Partition) -> None: ...
    def refusal(self) -> LogdError: ...
    def start_job(self, work: Callable[[], Callable[[], None]]) -> None: ...
    def job_failed(self, error: BaseException) -> None: ...
    def resume(self) -> None: ...
    def turn_soon(self) -> None: ...


class TopicSync:
    def __init__(
        self,
        scheduler: Scheduler,
        policy: FsyncPolicy,
        job: BackgroundJob,
        topic: SyncedTopic,
        may_block: Callable[[object], bool],
    ) -> None:
        self.commits = GroupCommit(policy)
        self.is_stopped = False  # the log's files are gone, so a sync is of no use
        self.delayed_since_s = 0.0  # when single messages began to wait for others
        self._scheduler, self._job, self._topic = scheduler, job, topic
        self._may_block = may_block  # may this topic block the event loop for a fast sync?
        self._acks_wait = policy.acks_wait
        self._timer: Timer | None = None
        self._delay_timer: Timer | None = None

    def start_when_due(self) -> None:
        """Start a sync, or set the timer for the next one. Called after each write."""
        if self._job.is_running or self.is_stopped:
            return
        commits = self.commits
        if self._timer is not None and commits.is_timed():
            return
        due_in_s = commits.due_in_s(self._scheduler.monotonic_s())
        if due_in_s == 0:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if commits.is_fast() and self._may_block(self._topic):
                self._sync_on_loop()
            else:
                self._topic.start_job(self._sync)
        elif due_in_s is not None and self._timer is None:
            self._timer = self._scheduler.later(due_in_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.start_when_due()

    def _sync_on_loop(self) -> None:
        try:
            finish = self._sync()
        except (OSError, SyncFailed) as error:
            self._topic.job_failed(error)
        else:
            finish()
        self._topic.resume()

    def _sync(self) -> Callable[[], None]:
        """Sync everything written so far. Blocks; what it returns runs on the event loop."""
        topic, end = self._topic, self.commits.written
        started_at_s = self._scheduler.monotonic_s()
        topic.active.sync()
        ended_at_s = self._scheduler.monotonic_s()
        if not topic.active.is_in_place():
            return lambda: self._refuse(end, started_at_s, ended_at_s)
        topic.save_progress(end, started_at_s)
        return lambda: self.finish(end, started_at_s, ended_at_s)

    def finish(self, end: LogPosition, started_at_s: float, ended_at_s: float) -> None:
        """Everything before `end` is on disk: acknowledge it."""
        if self._acks_wait:
            self._topic.publish(end)  # first, so that a client can read what it is told is stored
        for push in self.commits.synced_to(end, started_at_s, ended_at_s):
            push.stored()

    def _refuse(self, end: LogPosition, started_at_s: float, ended_at_s: float) -> None:
        """The data is on disk, but in a file that no longer has a name."""
        self._topic.lose_files(self._topic.active)
        for push in self.commits.synced_to(end, started_at_s, ended_at_s):
            push.refused(self._topic.refusal())

    # -- commit delay ---------------------------------------------------------------------------

    def delays(self, singles: Singles) -> bool:
        """Should single messages wait for others before they are written?

        They cannot be acknowledged before a sync, and written together they are one batch.
        """
        now_s = self._scheduler.monotonic_s()
        since_s = self.delayed_since_s = self.delayed_since_s or now_s
        due_in_s, singles.call_at = self.commits.delay(len(singles), since_s, now_s)
        if due_in_s and self._delay_timer is None:
            self._delay_timer = self._scheduler.later(due_in_s, self._delay_ended)
        return bool(due_in_s)

    def _delay_ended(self) -> None:
        self._delay_timer = None
        self._topic.turn_soon()
