# cython: language_level=3, annotation_typing=False
"""One topic: its log, and the pushes that are written to it in groups.

Runs on the thread of the event loop. Work that may wait for a disk (create, roll, sync, delete,
close) is a background job, one at a time; pushes that arrive meanwhile form the next group. Always:
offsets have no gaps; a group is stored completely or not at all; nothing is acknowledged before the
fsync policy allows it, and nothing is readable before it could be acknowledged. Imports no asyncio
and no sockets: the event loop is a `Scheduler`, a client is a `PendingPush`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from logd.batch import LINES, body_sum, encode_header
from logd.config import Config
from logd.errors import Faulted, LogdError, NoSpace, ShuttingDown
from logd.partition import Partition
from logd.repair import Damage, merge_damages
from logd.storage import recovery, topic_files
from logd.storage.cursor_commits import TopicCursors
from logd.storage.delete_hooks import RunningHooks
from logd.storage.disk import SyncFailed, refusal
from logd.storage.fsync_policy import FsyncPolicy
from logd.storage.producers import Producers
from logd.storage.readable_range import NewestWrite, ReadableRange, WaitingReaders
from logd.storage.retention import Expiration
from logd.storage.scheduler import BackgroundJob, Scheduler
from logd.storage.single_push import Singles, answer_one
from logd.storage.topic_files import Opened, TopicFiles
from logd.storage.topic_sync import LogPosition, TopicSync
from logd.storage.write_group import PendingPush, WriteGroup

log = logging.getLogger("logd")
_GROUP_BATCHES = 500  # two buffers each; the kernel takes 1,024 in one call
_GROUP_BYTES = 16 << 20
_QUIET_S = 0.00005
NO_ROOM = "the disk has less free space than min-free-bytes; nothing was stored"
STOPPING = "the daemon is stopping; reconnect in a moment"


class LastSingle:
    """When any topic last stored a single message at once."""

    at_s = 0.0


class Topic:
    def __init__(
        self,
        name: str,
        directory: Path,
        config: Config,
        scheduler: Scheduler,
        running_hooks: RunningHooks,
        on_read: Callable[[Partition], None] = lambda partition: None,
        may_block: Callable[[object], bool] = lambda topic: True,
    ) -> None:
        config = config.for_topic(name)
        policy = FsyncPolicy(config.fsync, config.fsync_interval_s, config.fsync_batches)
        self.name, self.directory = name, directory
        self.ready = False  # the files exist
        self.closing = False
        self.has_room = True  # on the disk; the store checks this once per second
        self.damages: tuple[Damage, ...] = ()  # if there are any, the topic is faulted: read only
        self._has_lost_files = False  # since the start; then it is faulted as well
        self.stored_messages = self.stored_bytes = 0  # since the start
        self._checked_bytes = 0  # `stored_bytes` at the last check of the files
        self.clock_behind_ms = 0
        self.readable = ReadableRange(on_read)
        self.waiting_readers = WaitingReaders()
        self.producers = Producers()
        self._config, self._scheduler = config, scheduler
        self._acks_wait = policy.acks_wait
        self._job = BackgroundJob(scheduler, self._job_ended)
        self._sync = TopicSync(scheduler, policy, self._job, self, may_block)
        self._expiration = Expiration(config, scheduler, self, running_hooks)
        self.cursors = TopicCursors(policy, config.max_cursors, scheduler, self)
        self._pending: deque[PendingPush] = deque()
        self.singles = Singles(name, self._single_came)  # pending as well
        self._came_alone = True  # the last single message
        self._turn_is_due = False
        self._tail_is_dirty = False  # a failed write may have left bytes after the last batch
        self._on_closed: Callable[[], None] | None = None
        self._partition_began_s = 0.0

    def configure(self, config: Config) -> bool:
        """Apply changed settings. The fsync settings stay: False if they were to change."""
        config, old = config.for_topic(self.name), self._config
        self._config = replace(
            config,
            fsync=old.fsync,
            fsync_interval_s=old.fsync_interval_s,
            fsync_batches=old.fsync_batches,
        )
        self._expiration.configure(config)
        self.cursors.max_cursors = config.max_cursors
        return self._config == config

    # -- open -----------------------------------------------------------------------------------

    def open(self) -> Opened:
        """Open existing files. Blocks: only for the start of the daemon."""
        opened = recovery.open_topic(self.name, self.directory)
        self._use(opened)
        return opened

    def create(self, failed: Callable[[], object]) -> None:
        """Create the files; pushes that arrive meanwhile wait."""
        now_ms = self._scheduler.now_ms()

        def work() -> Opened:
            if self.directory.exists():  # an earlier attempt failed after the rename
                return recovery.open_topic(self.name, self.directory)
            return topic_files.create_topic(self.directory, now_ms)

        def done(opened: Any, error: BaseException | None) -> None:
            if error is None:
                self._use(opened)
            else:
                self.singles.is_open = False
                failed()
                self.job_failed(error)

        self._job.start(work, done)

    def _use(self, opened: Opened) -> None:
        for partition in opened.partitions:
            self.readable.add(partition)
        self._files = TopicFiles(opened, self.readable)
        self.id, self.producers, self.damages = opened.id, opened.producers, opened.damages
        self.cursors.open(opened.cursors)
        self.singles.is_open = not opened.damages
        self.readable.exclude(merge_damages(opened.damages))
        self.ready = True
        damaged_to = max((damage.next for damage in opened.damages), default=0)
        if not opened.partitions:
            self.readable.set_end(damaged_to, 0)
            return
        self._time_ms = max(opened.time_ms, opened.state.since_ms)
        self._use_partition(opened.partitions[-1], 0)
        self.readable.set_end(max(self.active.next, damaged_to), self.active.size)
        if not self.damages and self.active.size:  # its age counts from earlier runs
            age_s = (self._scheduler.now_ms() - self.active.min_time_ms) / 1000
            self._partition_began_s -= max(0.0, age_s)

    def _use_partition(self, partition: Partition, batches: int) -> None:
        """Write to this partition from now on; all of it is on disk."""
        self.active = partition
        end = LogPosition(partition.first, partition.size, partition.next, batches)
        self._sync.start_at(end)
        self._partition_began_s = self._scheduler.monotonic_s()

    # -- push -----------------------------------------------------------------------------------

    def push(self, push: PendingPush) -> None:
        """Store this together with everything that arrives in the same turn of the event loop."""
        if self.closing or self.damages:
            push.refused(self.refusal())
            return
        if self.singles:  # one of them may have been sent before it on the same connection
            self._take_singles()
        self._pending.append(push)
        if not self._turn_is_due:
            self.turn_soon()

    def turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._scheduler.soon(self._turn)

    def _single_came(self) -> None:
        """The first single message since the last turn. If the daemon is idle it is stored at once.
        Otherwise others get the rest of the turn to join it, and to share its sync."""
        now_s = self._scheduler.monotonic_s()
        is_idle = self._came_alone and now_s - LastSingle.at_s > _QUIET_S
        if not is_idle or self._turn_is_due or self._acks_wait:
            self.turn_soon()
            return
        if self._may_store_single():
            self._store_single(now_s)
        else:
            self._turn()
        LastSingle.at_s = self._scheduler.monotonic_s()

    def _may_store_single(self) -> bool:
        """Is one single message all that is pending, and can it be written and acknowledged now?"""
        return (
            len(self.singles) == 1 and self.ready and self.has_room
            and not (self._pending or self._acks_wait or self._tail_is_dirty)
            and not (self._job.is_running or self._expiration.expired)
            and self._job_before_write() is None
        )  # fmt: skip

    def _store_single(self, now_s: float) -> None:
        """The same as a turn for one message, without a group and a pending push."""
        body, client = self.singles.take_one()
        active, time_ms = self.active, self._now_ms()
        offset = active.next
        data = encode_header(offset, 1, len(body), time_ms, LINES, body_sum(body)) + body
        buffers, size = [data], len(data)
        try:
            active.append(buffers, ((offset, size),), offset + 1, time_ms)
        except OSError as error:
            self._write_failed()
            client.single_refused(refusal(error))
            return
        self._wrote(1, size, 1, now_s)
        self.readable.set_end(offset + 1, active.size)
        if self.waiting_readers.calls:
            self.waiting_readers.wake(NewestWrite(offset, 1, size, buffers))
        answer_one(client, offset)
        self._sync.start_when_due()

    def _take_singles(self) -> None:
        """Queue the single messages like any other push."""
        self._came_alone = len(self.singles) == 1
        self._pending.extend(self.singles.take())

    def _turn(self) -> None:
        """Write what is pending, unless a job has to come first."""
        self._turn_is_due = False
        if self._may_store_single():
            self._came_alone = True
            self._store_single(self._scheduler.monotonic_s())
            self._finish_closing()
            return
        if self.singles:
            may_wait = self._acks_wait and not self._pending and not self.closing
            if may_wait and self._sync.delays(self.singles):
                return
            self._take_singles()
        writes = self.ready and bool(self._pending)
        needed = self._job_before_write() if writes else None
        if needed:
            self.start_job(needed)
        if self._expiration.expired:
            self.start_job(self._expiration.delete)
        if writes and not needed and not self._sync.must_wait():
            self._flush()
        if not self._pending:
            self._finish_closing()
        elif not self._job.is_running:
            self.turn_soon()

    def _job_before_write(self) -> Callable[[], Callable[[], None]] | None:
        """The job that has to be done before the next write, if there is one."""
        if not self._files.is_marked_unclean:
            return self._mark_unclean
        config, size = self._config, self.active.size
        age_s = config.partition_age_s
        is_old = age_s and self._scheduler.monotonic_s() - self._partition_began_s >= age_s
        return self._roll if size and (is_old or size >= config.partition_bytes) else None

    # -- flush ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write one group of pending pushes."""
        if not self.has_room:
            self._refuse_pending(NoSpace(NO_ROOM))
            return
        group, pushes = self._form_group()
        try:
            if group.placed:
                self._append(group)
        except OSError as error:
            self.producers.rollback()
            self._write_failed()
            refused = refusal(error)
            for push in pushes:
                push.refused(refused)
            return
        self.producers.commit()
        if not self._sync.await_sync(pushes):
            if group.placed:
                self.publish(self._sync.written, group)
            for push in pushes:
                push.stored()
        self._sync.start_when_due()

    def _form_group(self) -> tuple[WriteGroup, list[PendingPush]]:
        """Take as many of the pending pushes as one write may hold."""
        group, pending = WriteGroup(self.active.next, self._now_ms()), self._pending
        if len(pending) == 1 and group.add_alone(pending[0]):
            return group, [pending.popleft()]
        max_bytes = min(_GROUP_BYTES, self._config.partition_bytes - self.active.size)
        max_batches = min(_GROUP_BATCHES, self._sync.room())
        return group, group.add_pending(pending, self.producers, max_bytes, max_batches)

    def _now_ms(self) -> int:
        """The time of what is written now; it never decreases."""
        now_ms = self._scheduler.now_ms()
        self._time_ms = max(now_ms, self._time_ms)
        self.clock_behind_ms = self._time_ms - now_ms
        return self._time_ms

    def _append(self, group: WriteGroup) -> None:
        self._truncate_tail()
        active = self.active
        messages = group.next - active.next
        active.append(group.buffers, group.placed, group.next, group.time_ms)
        since_s = self._sync.delayed_since_s or self._scheduler.monotonic_s()
        self._wrote(messages, group.size, len(group.placed), since_s)
        self._sync.delayed_since_s = 0.0

    def _wrote(self, messages: int, size: int, batches: int, since_s: float) -> None:
        active, commits = self.active, self._sync
        self.stored_messages += messages
        self.stored_bytes += size
        batches += commits.written.batches
        commits.wrote(LogPosition(active.first, active.size, active.next, batches), since_s)

    def _write_failed(self) -> None:
        self._tail_is_dirty = True
        try:
            self._truncate_tail()
        except OSError:
            pass  # the next write tries again, and fails if this does

    def _truncate_tail(self) -> None:
        """Cut off what a failed write left; nothing may be written after it."""
        if self._tail_is_dirty:
            self.active.truncate()
            self._tail_is_dirty = False

    def publish(self, end: LogPosition, group: WriteGroup | None = None) -> None:
        """Make everything up to `end` readable, and wake readers with the group if that is all."""
        first = self.readable.next
        self.readable.set_end(end.next, end.position)
        if self.waiting_readers.calls and end.next > first:  # a roll publishes nothing new
            newest = None
            if group is not None and group.first == first:
                newest = NewestWrite(first, end.next - first, group.size, group.buffers)
            self.waiting_readers.wake(newest)

    def _refuse_pending(self, error: LogdError) -> None:
        if self.singles:
            self._take_singles()
        while self._pending:
            self._pending.popleft().refused(error)

    # -- background jobs ------------------------------------------------------------------------

    def start_job(self, work: Callable[[], Callable[[], None]]) -> None:
        """Unless a job is running: run `work` on a thread, and what it returns on the loop."""
        if not self._job.is_running:
            self._job.start(work, self._finish_job)

    def _finish_job(self, finish: Any, error: BaseException | None) -> None:
        if error is None:
            finish()
        else:
            self.job_failed(error)

    def _job_ended(self) -> None:
        self._sync.start_when_due()
        self._turn()

    def resume(self) -> None:
        """Continue after a sync on the event loop."""
        if self._pending or self._on_closed or self._expiration.expired:
            self.turn_soon()

    def job_failed(self, error: BaseException) -> None:
        """Pending pushes get the error. After a failed sync the daemon has to stop."""
        if isinstance(error, FileNotFoundError) and self.ready and not self.active.is_in_place():
            self.lose_files(self.active)
        if isinstance(error, SyncFailed):
            self.closing, self.singles.is_open = True, False
            self._scheduler.fatal(f"topic {self.name}: {error}")
        self._refuse_pending(refusal(error))

    def _mark_unclean(self) -> Callable[[], None]:
        self._files.mark_unclean(self._sync.written)

        def finish() -> None:
            self._files.is_marked_unclean = True

        return finish

    def save_progress(self, end: LogPosition, now_s: float) -> None:
        self._files.save_progress(self.active, end, now_s)

    # -- roll -----------------------------------------------------------------------------------

    def _roll(self) -> Callable[[], None]:
        """Seal the active partition and create the next."""
        old = self.active
        self._truncate_tail()
        new = self._files.roll(old, self._sync.written)

        def finish() -> None:
            now_s = self._scheduler.monotonic_s()
            written = self._sync.written
            self._sync.finish(written, now_s, now_s)
            old.seal()
            self.readable.add(new)
            self._use_partition(new, written.batches)
            self.readable.set_end(new.next, 0)

        return finish

    # -- faults ---------------------------------------------------------------------------------

    def refusal(self) -> LogdError:
        """Why nothing can be written."""
        if self.closing:
            return ShuttingDown(STOPPING)
        damage = next(iter(self.readable.damages or self.damages))
        remedy = "stop the daemon and run log-cli repair"
        if self._has_lost_files:
            remedy = "read what is still readable, then restart the daemon"
        return Faulted(
            f"first={damage.first} next={damage.next} {damage}; the topic is read-only: {remedy}"
        )

    def was_written(self) -> bool:
        """Has anything been stored since the last call?"""
        before, self._checked_bytes = self._checked_bytes, self.stored_bytes
        return self._checked_bytes != before

    def lose_files(self, partition: Partition) -> None:
        """The file of this partition is gone. Nothing is acknowledged from now on, because a
        restart would not find it. What is open can still be read."""
        is_known = self.readable.partitions.get(partition.first) is partition
        if self.damages or self.closing or not is_known or self._expiration.is_hooked(partition):
            return
        reason = "removed, replaced or truncated while the daemon was running"
        damage = Damage(partition.first, partition.next, partition.path.name, 0, 0, reason)
        self.damages, self._has_lost_files, self._sync.is_stopped = (damage,), True, True
        self.singles.is_open = False
        log.error("topic %s is faulted: %s", self.name, damage, extra={"topic": self.name})
        if partition.sealed:
            self.readable.exclude(self.damages)
        self._refuse_pending(self.refusal())

    def check_files_are_there(self) -> None:
        """Raise Faulted if files are known to be lost."""
        if self._has_lost_files:
            raise self.refusal()

    # -- retention ------------------------------------------------------------------------------

    def check_retention(self) -> None:
        """Once per second: start what retention requires. Raises what prevents it."""
        if self.ready and not self.damages and not self.closing:
            self._expiration.check()

    def save_first(self) -> None:
        self._files.save_first(self._sync.synced)

    # -- close ----------------------------------------------------------------------------------

    def close(self, closed: Callable[[], None]) -> None:
        """Refuse new pushes, finish the pending ones, then sync and close the files."""
        self.closing, self.singles.is_open = True, False
        self._on_closed = closed
        self.cursors.close()
        self.waiting_readers.wake()
        self._turn()

    def _finish_closing(self) -> None:
        if self._on_closed is None or self._job.is_running or self._pending:
            return
        if self._expiration.is_busy or self.cursors.is_busy:
            return  # each of them starts a turn when it has ended
        closed, self._on_closed = self._on_closed, None
        if not self.ready or not self._files.is_marked_unclean or self._has_lost_files:
            closed()  # nothing was written in this run, so the files are as a clean stop left them
            return

        def work() -> Callable[[], None]:
            end = self._sync.written
            self._truncate_tail()
            self._files.close(self.active, end)
            now_s = self._scheduler.monotonic_s()
            return lambda: self._sync.finish(end, now_s, now_s)

        def done(finish: Any, error: BaseException | None) -> None:
            self._finish_job(finish, error)
            closed()

        self._job.start_last(work, done)

    # -- stats ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        return {
            "topic": self.name,
            "id": self.id,
            "first": self.readable.first,
            "next": self.readable.next,
            "bytes": self.readable.size,
            "partitions": len(self.readable.partitions),
            "epoch": self._files.state.epoch,
            "epoch_began": self._files.state.began,
            "damages": len(self.damages),
            **self._expiration.stats(),
            "fsync": self._config.fsync,
            "unsynced_batches": self._sync.unsynced,
            "waiting_pushes": len(self._pending) + len(self.singles) + self._sync.awaiting,
            "waiting_reads": self.waiting_readers.reads,
            "followers": self.waiting_readers.followers,
            "producers": len(self.producers),
            "clock_behind_ms": self.clock_behind_ms,
            **self.cursors.stats(self.readable.next),
        }
