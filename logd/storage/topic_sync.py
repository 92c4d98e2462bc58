# cython: language_level=3, annotation_typing=False
"""How much of a topic is written and synced, when it is synced, and the pushes waiting for fsync.

`FsyncPolicy` and `CommitDelay` decide; this object has the positions, the clock and the timers. A
sync runs as the topic's background job, or on the event loop if syncs are fast. Batches between the
two positions may be lost in a power failure. Always: a sync covers what was written before it
started, and with fsync=always a push is acknowledged, and becomes readable, only after a sync that
covers it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from logd.errors import LogdError
from logd.partition import Partition
from logd.storage.disk import SyncFailed
from logd.storage.fsync_policy import CommitDelay, FsyncPolicy
from logd.storage.scheduler import BackgroundJob, Scheduler, Timer
from logd.storage.single_push import Singles
from logd.storage.write_group import PendingPush

# A roll syncs what its partition has unsynced, and pushes wait for that. To keep it short, a sync
# starts in every mode once this much is unsynced.
_MAX_UNSYNCED_BYTES = 32 << 20


class LogPosition:
    """A position in the log: everything before it has been written, or synced. Never changed,
    because the event loop replaces it while a sync on another thread uses it."""

    __slots__ = ("batches", "next", "partition", "position")

    def __init__(self, partition: int, position: int, next_: int, batches: int) -> None:
        self.partition, self.position, self.next = partition, position, next_
        self.batches = batches  # stored since the start


class SyncedTopic(Protocol):
    """What the group commit needs of its topic."""

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
        self.written = self.synced = LogPosition(0, 0, 0, 0)
        self.is_stopped = False  # the log's files are gone, so a sync is of no use
        self.awaiting = 0  # clients whose pushes wait for a sync
        self.delayed_since_s = 0.0  # when single messages began to wait for others
        self._scheduler, self._policy, self._job, self._topic = scheduler, policy, job, topic
        self._may_block = may_block  # may this topic block the event loop for a fast sync?
        self._commit_delay = CommitDelay()
        self._awaiting: deque[tuple[int, list[PendingPush], int]] = deque()  # up to an offset
        self._oldest_at_s = 0.0  # when the oldest unsynced batch was written, or before
        self._timer: Timer | None = None
        self._delay_timer: Timer | None = None

    @property
    def unsynced(self) -> int:
        return self.written.batches - self.synced.batches

    # -- writes ---------------------------------------------------------------------------------

    def start_at(self, end: LogPosition) -> None:
        """Everything up to here is on disk: at the start, and in a new partition."""
        self.written = self.synced = end

    def wrote(self, end: LogPosition, now_s: float) -> None:
        if not self.unsynced:
            self._oldest_at_s = now_s
        self.written = end

    def await_sync(self, pushes: list[PendingPush]) -> bool:
        """Keep these pushes until they are synced; False if they need not wait."""
        if not (self._policy.acks_wait and self.unsynced):
            return False
        clients = sum(push.clients for push in pushes)
        self._awaiting.append((self.written.next, pushes, clients))
        self.awaiting += clients
        return True

    def must_wait(self) -> bool:
        """Is so much unsynced that nothing more may be written?"""
        if not self._job.is_running:
            return False
        oldest_s = self._scheduler.monotonic_s() - self._oldest_at_s
        return self._policy.must_wait(self.unsynced, oldest_s)

    def room(self) -> int:
        """How many batches may be written before pushes must wait."""
        return self._policy.room(self.unsynced)

    def delays(self, singles: Singles) -> bool:
        """Should single messages wait for others before they are written?

        They cannot be acknowledged before a sync, and written together they are one batch.
        """
        if self._job.is_running:
            return False
        now_s = self._scheduler.monotonic_s()
        self.delayed_since_s = self.delayed_since_s or now_s
        singles.call_at, wanted = 1, self._commit_delay.wanted(now_s)
        if self.awaiting or len(singles) >= wanted:
            return False
        due_in_s = self.delayed_since_s + self._commit_delay.max_s() - now_s
        singles.call_at = wanted  # ends the wait early
        if due_in_s > 0 and self._delay_timer is None:
            self._delay_timer = self._scheduler.later(due_in_s, self._delay_ended)
        return due_in_s > 0

    def _delay_ended(self) -> None:
        self._delay_timer = None
        self._topic.turn_soon()

    # -- syncs ----------------------------------------------------------------------------------

    def start_when_due(self) -> None:
        """Start a sync, or set the timer for the next one. Called after each write."""
        if self._job.is_running or self.is_stopped:
            return
        has_much = self.written.position - self.synced.position >= _MAX_UNSYNCED_BYTES
        if self._timer is not None and self._policy.mode == "interval" and not has_much:
            return  # the time of the next sync does not depend on what is written until then
        due_in_s = self._due_in_s(self._scheduler.monotonic_s(), has_much)
        if due_in_s == 0:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            is_fast = self._policy.acks_wait and self._commit_delay.is_fast()
            if is_fast and self._may_block(self._topic):
                self._sync_on_loop()
            else:
                self._topic.start_job(self._sync)
        elif due_in_s is not None and self._timer is None:
            self._timer = self._scheduler.later(due_in_s, self._timer_fired)

    def _due_in_s(self, now_s: float, has_much: bool) -> float | None:
        """How long until a sync should start; None if none is due."""
        if self.awaiting:
            if self.awaiting >= self._commit_delay.wanted(now_s):
                return 0.0
            return max(0.0, self._oldest_at_s + self._commit_delay.max_s() - now_s)
        if has_much:
            return 0.0
        return self._policy.due_in_s(self.unsynced, now_s - self._oldest_at_s)

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
        topic, end = self._topic, self.written
        started_at_s = self._scheduler.monotonic_s()
        topic.active.sync()
        ended_at_s = self._scheduler.monotonic_s()
        if not topic.active.is_in_place():
            return lambda: self._refuse(end, started_at_s, ended_at_s)
        topic.save_progress(end, started_at_s)
        return lambda: self.finish(end, started_at_s, ended_at_s)

    def finish(self, end: LogPosition, started_at_s: float, ended_at_s: float) -> None:
        """Everything before `end` is on disk: acknowledge it."""
        if self._policy.acks_wait:
            self._topic.publish(end)  # first, so that a client can read what it is told is stored
        for push in self._synced_to(end, started_at_s, ended_at_s):
            push.stored()

    def _refuse(self, end: LogPosition, started_at_s: float, ended_at_s: float) -> None:
        """The data is on disk, but in a file that no longer has a name."""
        self._topic.lose_files(self._topic.active)
        for push in self._synced_to(end, started_at_s, ended_at_s):
            push.refused(self._topic.refusal())

    def _synced_to(
        self, end: LogPosition, started_at_s: float, ended_at_s: float
    ) -> list[PendingPush]:
        """Take the pushes that a sync of everything before `end` covers."""
        self.synced = end
        self._oldest_at_s = started_at_s
        synced: list[PendingPush] = []
        clients = 0
        while self._awaiting and self._awaiting[0][0] <= end.next:
            _, pushes, count = self._awaiting.popleft()
            synced += pushes
            clients += count
        self.awaiting -= clients
        self._commit_delay.synced(clients, self.awaiting, started_at_s, ended_at_s)
        return synced
