"""One topic: its writes in groups, its syncs, its rolls, and who waits for what.

Lives on the loop's thread. What may wait for a disk (creating, rolling, syncing, closing) runs off
it as a job, one at a time; pushes that come meanwhile form the next group. Always: offsets are
gapless; a group is stored whole or not at all; nothing is answered before the policy allows it, and
nothing is readable before it could be answered. Knows nothing of asyncio, sockets or HTTP: the loop
is behind `Scheduler`, a client behind `PendingPush`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logd.batch import LINES, NO_ID, Buffer, body_sum, encode_header
from logd.config import Config
from logd.errors import Faulted, LogdError, NoSpace, ShuttingDown
from logd.partition import Partition
from logd.repair import Damage, joined
from logd.storage import recovery, topic_files
from logd.storage.checkpoint import Checkpoint, CheckpointState
from logd.storage.cursor_commits import TopicCursors
from logd.storage.delete_hooks import RunningHook
from logd.storage.disk import SyncFailed, refusal
from logd.storage.expiration import Expiration
from logd.storage.fsync_policy import FsyncPolicy
from logd.storage.group_commit import GroupCommit, LogPosition
from logd.storage.producers import Producers, StoredId
from logd.storage.readable_range import ReadableRange
from logd.storage.single_push import Singles, answer_one
from logd.storage.write_group import CheckedBatch, WriteGroup
from logd.wire.requests import Pushes

log = logging.getLogger("logd")
_GROUP_BATCHES = 500  # two buffers each, and the kernel takes 1,024 in one call
_GROUP_BYTES = 16 << 20
_QUIET_S = 0.00005
_DELETED_AT_ONCE = 16  # files; syncs wait for it
NO_ROOM = "there is less free on the disk than min-free-bytes; nothing of this was stored"


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """What a topic needs of an event loop."""

    def soon(self, call: Callable[[], None]) -> None: ...
    def later(self, delay_s: float, call: Callable[[], None]) -> Timer: ...
    def offload(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """Run `work` on another thread, then `done` with its result or its error on this one."""

    def offload_cpu(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """The same for work that takes the processor, not the disk: on threads of their own."""

    def now_ms(self) -> int: ...
    def monotonic_s(self) -> float: ...
    def offload_hook(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        """The same for a delete hook, which may take minutes: on threads of their own."""

    def fatal(self, reason: str) -> None:
        """Nothing may be acknowledged any more: stop the daemon."""


class PendingPush(Protocol):
    """A push on its way, and whoever waits for it."""

    content: Pushes | CheckedBatch
    clients: int  # who wait for it
    offset: int  # where it was stored: set before `stored` is called
    messages: int  # how many; only for a CheckedBatch

    def stored(self) -> None: ...
    def refused(self, error: LogdError) -> None: ...


class NewestWrite(NamedTuple):
    """What was written just now: whoever waits at the end need not read it from the file."""

    offset: int
    messages: int
    size: int
    buffers: Sequence[Buffer]


class Topic:
    _single_done_s = 0.0  # when any topic last stored a single message at once

    def __init__(
        self,
        name: str,
        directory: Path,
        config: Config,
        scheduler: Scheduler,
        running_hooks: RunningHook,
        touch: Callable[[Partition], None] = lambda partition: None,
        is_alone: Callable[[object], bool] = lambda topic: True,
    ) -> None:
        config = config.for_topic(name)
        self.name = name
        self.directory = directory
        self.view = ReadableRange(touch)
        self.producers = Producers()
        self.ready = False  # its files exist
        self.damages: tuple[Damage, ...] = ()  # with any, the topic is faulted: read only
        self._has_lost_files = False  # since the start; then it is faulted, too
        self.stored_messages = self.stored_bytes = 0  # since the start
        self._checked_bytes = 0  # of them, when its files were last looked for
        self.closing = False
        self.has_room = True  # on the disk, as the store sees it once a second
        self.clock_behind_ms = 0
        self._config = config
        self._scheduler = scheduler
        self._is_alone = is_alone  # is no other topic syncing at this time?
        self._policy = FsyncPolicy(config.fsync, config.fsync_interval_s, config.fsync_batches)
        self._answers_wait = self._policy.answers_wait
        self._commits: GroupCommit[PendingPush] = GroupCommit(self._policy)
        self._expiry = Expiration(
            name,
            config,
            self.view,
            running_hooks,
            scheduler.offload_hook,
            self._let_go,
            self._hook_ended,
            scheduler.monotonic_s,
        )
        self.cursors = TopicCursors(
            directory,
            self._policy,
            config.max_cursors,
            scheduler.offload,
            scheduler.later,
            scheduler.now_ms,
            scheduler.monotonic_s,
            self._job_failed,
            self._turn_soon,
        )
        self._expired: list[Partition] = []  # out of sight, but still on disk
        self._left_over: list[Partition] = []  # those that could not be deleted; tried again
        self._pending: deque[PendingPush] = deque()
        self.singles = Singles(name, self._single_came)  # pending too
        self._came_alone = True  # the last of them
        self._gathers_since_s = 0.0  # when single messages began to wait for company
        self._waiters: dict[object, Callable[[], None]] = {}
        self.fresh: NewestWrite | None = None  # only while those who wait are woken
        self._turn_is_due = False
        self._job_is_running = False
        self._marked_unclean = False
        self._tail_is_dirty = False
        self._sync_timer: Timer | None = None
        self._gather_timer: Timer | None = None
        self._on_closed: Callable[[], None] | None = None
        self._created_at = 0.0

    def configure(self, config: Config) -> bool:
        """Take other settings while at work. Not how to sync: False if that was to change."""
        config, old = config.for_topic(self.name), self._config
        self._config = replace(
            config,
            fsync=old.fsync,
            fsync_interval_s=old.fsync_interval_s,
            fsync_batches=old.fsync_batches,
        )
        self._expiry.configure(config)
        self.cursors.max_cursors = config.max_cursors
        return self._config == config

    # -- start ----------------------------------------------------------------------------------

    def open(self) -> topic_files.Opened:
        """Read the topic's files. Blocks: for the start only."""
        opened = recovery.open_topic(self.name, self.directory)
        self._take(opened)
        return opened

    def create(self, failed: Callable[[LogdError], None]) -> None:
        """Make the topic's files; pushes may come in already and wait for that."""

        def done(opened: Any, error: BaseException | None) -> None:
            self._job_is_running = False
            if error is None:
                self._take(opened)
            else:
                self.singles.is_open = False  # there will be no such topic
                failed(refusal(error))
                self._job_failed(error)
            self._turn()

        self._job_is_running = True
        now_ms = self._scheduler.now_ms()
        self._scheduler.offload(lambda: self._make_files(now_ms), done)

    def _make_files(self, now_ms: int) -> topic_files.Opened:
        if self.directory.exists():  # made before, by an attempt that failed behind the rename
            return recovery.open_topic(self.name, self.directory)
        return topic_files.create_topic(self.directory, now_ms)

    def _take(self, opened: topic_files.Opened) -> None:
        for partition in opened.partitions:
            self.view.add(partition)
        self.checkpoint: Checkpoint = opened.checkpoint
        self.producers = opened.producers
        self.cursors.take(opened.cursors)
        self.id, self._state = opened.id, opened.state
        self.damages = opened.damages
        self.singles.is_open = not opened.damages
        self.view.lead_around(joined(opened.damages))
        self.ready = True
        damaged_to = max((damage.next for damage in opened.damages), default=0)
        if not opened.partitions:
            self.view.show(damaged_to, 0)
            return
        self.active = opened.partitions[-1]
        self._time_ms = max(opened.time_ms, opened.state.since_ms)
        self._commits.start_at(
            LogPosition(self.active.first, self.active.size, self.active.next, 0)
        )
        self.view.show(max(self.active.next, damaged_to), self.active.size)
        self._created_at = self._scheduler.monotonic_s() - self._age_s()
        self._marked_unclean = not opened.clean and not self.damages

    def _age_s(self) -> float:
        """How old the active partition is at the start: the runs before count too."""
        if self.damages or not self.active.size:
            return 0.0
        return max(0.0, (self._scheduler.now_ms() - self.active.min_time_ms) / 1000)

    # -- writing --------------------------------------------------------------------------------

    def push(self, push: PendingPush) -> None:
        """Store this together with all that arrives in the same turn."""
        if self.closing or self.damages:
            push.refused(self._refusal())
            return
        if self.singles:  # one of them may have come before it, on the same connection
            self._take_singles()
        self._pending.append(push)
        if not self._turn_is_due:
            self._turn_is_due = True
            self._scheduler.soon(self._turn)

    def _refusal(self) -> LogdError:
        if self.closing:
            return ShuttingDown("the daemon is stopping; connect again in a moment")
        damage = (*self.view.damages, *self.damages)[0]
        what_to_do = "before a repair: stop the daemon and run log-cli repair"
        if self._has_lost_files:
            what_to_do = "before a restart: read what can still be read, then restart the daemon"
        return Faulted(
            f"first={damage.first} next={damage.next} {damage}; nothing is written to this topic"
            f" {what_to_do}"
        )

    def _turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._scheduler.soon(self._turn)

    def _single_came(self) -> None:
        """The first one since the last turn. On a quiet daemon it is stored at once; where others
        are about, or a sync is to be shared, they get the rest of the loop's turn to join it."""
        now_s = self._scheduler.monotonic_s()
        is_quiet = self._came_alone and now_s - Topic._single_done_s > _QUIET_S
        if not is_quiet or self._turn_is_due or self._answers_wait:
            self._turn_soon()
            return
        is_busy = self._job_is_running or self._pending or self._expired or self._tail_is_dirty
        if is_busy or not (self.ready and self.has_room) or self._before_writing() is not None:
            self._turn()
        else:
            self._store_single(now_s)
        Topic._single_done_s = self._scheduler.monotonic_s()

    def _store_single(self, now_s: float) -> None:
        """What a turn does, for one message and nothing else: no group, no pending push. On a
        daemon that has rested each object and each call costs far more than on a busy one."""
        body, who = self.singles.take_one()
        active, time_ms = self.active, self._now_ms()
        offset = active.next
        header = encode_header(offset, 1, len(body), time_ms, LINES, body_sum(body))
        buffers, size = [header, body], len(header) + len(body)
        try:
            active.append(buffers, ((offset, size),), offset + 1, time_ms)
        except OSError as error:
            self._tail_is_dirty = True
            self._clean_tail(and_report=False)
            who.single_refused(refusal(error))
            return
        self._wrote(1, size, 1, now_s)
        self.view.show(offset + 1, active.size)
        if self._waiters:
            self.fresh = NewestWrite(offset, 1, size, buffers)
            self._wake()
            self.fresh = None
        answer_one(who, offset)
        self._sync_when_due()

    def _turn(self) -> None:
        """Write what is pending, unless something has to be done first."""
        self._turn_is_due = False
        if self.singles:
            if self._answers_wait and self._gathers():
                return
            self._take_singles()
        writes = self.ready and bool(self._pending)
        needed = self._before_writing() if writes else None
        if needed:
            self._job(needed)
        if self._expired:
            self._job(self._delete_expired)
        if writes and not needed and not self._is_held_back():
            self._write_group()
        if not self._pending:
            self._finish_closing()
        elif not self._job_is_running:
            self._turn_soon()

    def _take_singles(self) -> None:
        """From now on they are pending like any other push."""
        self._came_alone = len(self.singles) == 1
        self._pending.extend(self.singles.take())

    def _gathers(self) -> bool:
        """Do single messages wait for more of their kind? What cannot be answered before a sync
        need not be written long before it, and is one batch when they are written together."""
        if self._pending or self._job_is_running or self.closing:
            return False
        now_s = self._scheduler.monotonic_s()
        since_s = self._gathers_since_s = self._gathers_since_s or now_s
        due_in_s, self.singles.call_at = self._commits.gather(len(self.singles), since_s, now_s)
        if due_in_s and self._gather_timer is None:
            self._gather_timer = self._scheduler.later(due_in_s, self._gather_timer_fired)
        return bool(due_in_s)

    def _gather_timer_fired(self) -> None:
        self._gather_timer = None
        self._turn_soon()

    def _before_writing(self) -> Callable[[], Callable[[], None]] | None:
        """The job that must be done before anything is written, if there is one."""
        if not self._marked_unclean:
            return self._mark_unclean
        config, size = self._config, self.active.size
        age_s = config.partition_age_s
        is_old = age_s and self._scheduler.monotonic_s() - self._created_at >= age_s
        return self._roll if size and (is_old or size >= config.partition_bytes) else None

    def _is_held_back(self) -> bool:
        """Have syncs fallen so far behind that pushes must wait? Then one is under way."""
        return self._job_is_running and self._commits.hold_back(self._scheduler.monotonic_s())

    def _write_group(self) -> None:
        if not self.has_room:
            while self._pending:
                self._pending.popleft().refused(NoSpace(NO_ROOM))
            return
        group, pushes = self._form_group()
        try:
            if group.placed:
                self._append(group)
        except OSError as error:
            self.producers.rollback()
            self._tail_is_dirty = True
            self._clean_tail(and_report=False)
            refused = refusal(error)
            for push in pushes:
                push.refused(refused)
            return
        self.producers.commit()
        if not self._commits.await_sync(pushes):
            if group.placed:
                self._publish(self._commits.written, group)
            for push in pushes:
                push.stored()
        self._sync_when_due()

    def _form_group(self) -> tuple[WriteGroup, list[PendingPush]]:
        """Take from the pending pushes as many as one write may hold."""
        group, pending = WriteGroup(self.active.next, self._now_ms()), self._pending
        if len(pending) == 1 and (alone := _alone(pending[0].content)):
            push = pending.popleft()
            push.offset = group.add_alone(*alone)
            return group, [push]
        pushes: list[PendingPush] = []
        room_bytes = min(_GROUP_BYTES, self._config.partition_bytes - self.active.size)
        room_batches = min(_GROUP_BATCHES, self._commits.room())
        while pending and group.size < room_bytes and group.batches < room_batches:
            push = pending.popleft()
            content = push.content
            if isinstance(content, Pushes):
                push.offset = group.add_plain(content.bodies, content.counts)
            elif not self._add_batch(group, content, push):
                continue
            pushes.append(push)
        group.close()
        return group, pushes

    def _now_ms(self) -> int:
        """The time of what is written now: it never goes back."""
        now_ms = self._scheduler.now_ms()
        self._time_ms = max(now_ms, self._time_ms)
        self.clock_behind_ms = self._time_ms - now_ms
        return self._time_ms

    def _add_batch(self, group: WriteGroup, batch: CheckedBatch, push: PendingPush) -> bool:
        """Add it, unless its producer's number shows it stored already, or out of turn."""
        try:
            known = self.producers.stored(batch.id, batch.sum) if batch.id != NO_ID else None
        except LogdError as error:
            push.refused(error)
            return False
        if known is None:
            known = StoredId(group.add(batch), batch.messages)
            if batch.id != NO_ID:
                self.producers.stage(batch.id, known, batch.sum)
        push.offset, push.messages = known
        return True

    def _append(self, group: WriteGroup) -> None:
        self._clean_tail()
        active = self.active
        messages = group.next - active.next
        active.append(group.buffers, group.placed, group.next, group.time_ms)
        since_s = self._gathers_since_s or self._scheduler.monotonic_s()
        self._wrote(messages, group.size, len(group.placed), since_s)
        self._gathers_since_s = 0.0

    def _wrote(self, messages: int, size: int, batches: int, since_s: float) -> None:
        active, commits = self.active, self._commits
        self.stored_messages += messages
        self.stored_bytes += size
        batches += commits.written.batches
        commits.wrote(LogPosition(active.first, active.size, active.next, batches), since_s)

    def _clean_tail(self, *, and_report: bool = True) -> None:
        """Cut off what a failed write left; nothing is written behind it before that is done."""
        if not self._tail_is_dirty:
            return
        try:
            self.active.cut_back()
            self._tail_is_dirty = False
        except OSError:
            if and_report:
                raise

    def _publish(self, mark: LogPosition, group: WriteGroup | None = None) -> None:
        """Let readers see everything up to here; if that is one group, those who wait get it."""
        first = self.view.next
        self.view.show(mark.next, mark.position)
        if self._waiters:
            if group is not None and group.first == first:
                self.fresh = NewestWrite(first, mark.next - first, group.size, group.buffers)
            self._wake()
            self.fresh = None

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, {}
            for wake in waiters.values():
                wake()

    # -- syncing --------------------------------------------------------------------------------

    def _sync_when_due(self) -> None:
        if self._job_is_running or self._has_lost_files:
            return
        if self._sync_timer is not None and self._commits.is_timed():
            return
        due_in_s = self._commits.due_in_s(self._scheduler.monotonic_s())
        if due_in_s == 0:
            if self._sync_timer is not None:
                self._sync_timer.cancel()
                self._sync_timer = None
            if self._commits.is_quick() and self._is_alone(self):
                self._finish(*_attempt(self._sync))
                if self._pending or self._on_closed or self._expired:
                    self._turn_soon()
            else:
                self._job(self._sync)
        elif due_in_s is not None and self._sync_timer is None:
            self._sync_timer = self._scheduler.later(due_in_s, self._sync_timer_fired)

    def _sync_timer_fired(self) -> None:
        self._sync_timer = None
        self._sync_when_due()

    def _sync(self) -> Callable[[], None]:
        """Sync all that is written by the moment this starts; on a thread, or on the loop."""
        started_at_s = self._scheduler.monotonic_s()
        mark = self._commits.written
        self.active.sync()
        ended_at_s = self._scheduler.monotonic_s()
        if not self.active.is_in_place():
            return lambda: self._synced_in_vain(mark, started_at_s, ended_at_s)
        if topic_files.progress_is_due(self.checkpoint, started_at_s):
            topic_files.save_progress(self.active, self.checkpoint, self._checkpoint_at(mark))
        return lambda: self._synced_to(mark, started_at_s, ended_at_s)

    def _synced_to(self, mark: LogPosition, started_at_s: float, ended_at_s: float) -> None:
        if self._answers_wait:
            self._publish(mark)  # before the answers: whoever has one may read at once
        for push in self._commits.synced_to(mark, started_at_s, ended_at_s):
            push.stored()

    def _synced_in_vain(self, mark: LogPosition, started_at_s: float, ended_at_s: float) -> None:
        """The data is on disk, but in a file that no name leads to any more."""
        self.lose_files(self.active)
        for push in self._commits.synced_to(mark, started_at_s, ended_at_s):
            push.refused(self._refusal())

    def _checkpoint_at(self, mark: LogPosition, clean: bool = False) -> CheckpointState:
        return replace(
            self._state,
            first=self.view.first,
            partition=mark.partition,
            position=mark.position,
            next=mark.next,
            clean=clean,
        )

    # -- jobs: what may wait for the disk, one at a time ----------------------------------------

    def _job(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run `work` off the loop, then on it what `work` returned, then go on with the turn."""
        if self._job_is_running:
            return

        self._job_is_running = True
        self._scheduler.offload(work, self._done)

    def _done(self, then: Any, error: BaseException | None) -> None:
        self._job_is_running = False
        self._finish(then, error)
        self._sync_when_due()
        self._turn()

    def _finish(self, then: Any, error: BaseException | None) -> None:
        if error is None:
            then()
        else:
            self._job_failed(error)

    def _job_failed(self, error: BaseException) -> None:
        """A full disk is told to whoever waits; a failed sync ends the daemon."""
        refused = refusal(error)
        if isinstance(error, FileNotFoundError) and self.ready and not self.active.is_in_place():
            self.lose_files(self.active)
        if isinstance(error, SyncFailed):
            self.closing, self.singles.is_open = True, False
            self._scheduler.fatal(f"topic {self.name}: {error}")
        self._take_singles()
        while self._pending:
            self._pending.popleft().refused(refused)

    def _mark_unclean(self) -> Callable[[], None]:
        self.checkpoint.write(self._checkpoint_at(self._commits.written), synced=True)

        def then() -> None:
            self._marked_unclean = True

        return then

    def _roll(self) -> Callable[[], None]:
        """Close the active partition for good and open the next."""
        old = self.active
        self._clean_tail()
        new = topic_files.roll(
            old, self.producers, self.checkpoint, self._checkpoint_at(self._commits.written)
        )

        def then() -> None:
            now_s = self._scheduler.monotonic_s()
            written = self._commits.written
            self._synced_to(written, now_s, now_s)
            old.sealed_now()
            self.active = new
            self.view.add(new)
            self._commits.start_at(LogPosition(new.first, 0, new.next, written.batches))
            self.view.show(new.next, 0)
            self._created_at = self._scheduler.monotonic_s()

        return then

    # -- files that somebody else removes -------------------------------------------------------

    def was_written(self) -> bool:
        """Has anything been stored since this was last asked?"""
        before, self._checked_bytes = self._checked_bytes, self.stored_bytes
        return self._checked_bytes != before

    def lose_files(self, partition: Partition) -> None:
        """This partition's file is not where it was: nothing is acknowledged from now on, since a
        restart would not find it. What is open can still be read."""
        is_known = self.view.partitions.get(partition.first) is partition
        if self.damages or self.closing or not is_known or self._expiry.is_hooked(partition):
            return
        reason = "removed, replaced or cut off while the daemon ran"
        damage = Damage(partition.first, partition.next, partition.path.name, 0, 0, reason)
        self.damages, self._has_lost_files = (damage,), True
        self.singles.is_open = False
        log.error("topic %s is faulted: %s", self.name, damage, extra={"topic": self.name})
        if partition.sealed:
            self.view.lead_around(self.damages)
        self._take_singles()
        while self._pending:
            self._pending.popleft().refused(self._refusal())

    def check_files_are_there(self) -> None:
        """Faulted if they are known not to be."""
        if self._has_lost_files:
            raise self._refusal()

    # -- retention ------------------------------------------------------------------------------

    def check_retention(self) -> None:
        """Once a second: start what retention asks for. Raises what stands in its way just now."""
        if not self.ready or self.damages or self.closing:
            return
        if self._left_over:
            self._expired += self._left_over
            self._left_over = []
            self._turn_soon()
        self._expiry.check(self._scheduler.now_ms())

    def _let_go(self, partition: Partition) -> None:
        """An expired partition, its hook done: nobody sees it any more, and its files may go."""
        self.view.drop(partition)
        partition.let_go()
        self._expired.append(partition)
        self._turn_soon()

    def _hook_ended(self) -> None:
        """The next one may run, or a stop go on."""
        self._turn_soon()
        self._scheduler.soon(self._check_retention_early)

    def _check_retention_early(self) -> None:
        with suppress(LogdError, OSError):  # the housekeeping meets it in a second, and reports it
            self.check_retention()

    def _delete_expired(self) -> Callable[[], None]:
        """Note on disk that they went, then remove their files. What fails is tried again."""
        expired = self._expired[:_DELETED_AT_ONCE]
        left = list(expired)
        clean = not self._marked_unclean
        with suppress(OSError):
            self.checkpoint.write(self._checkpoint_at(self._commits.synced, clean), synced=True)
            for partition in expired:
                with suppress(OSError):
                    topic_files.remove(partition)
                    left.remove(partition)
            if not left:
                topic_files.remove_old_ids(self.directory, self.view.first)

        def then() -> None:
            del self._expired[: len(expired)]
            self._left_over += left

        return then

    # -- stop -----------------------------------------------------------------------------------

    def close(self, closed: Callable[[], None]) -> None:
        """Take no more pushes, finish those under way, then sync and close the files."""
        self.closing, self.singles.is_open = True, False
        self._on_closed = closed
        self.cursors.close()
        self._wake()
        self._turn()

    def _finish_closing(self) -> None:
        if self._on_closed is None or self._job_is_running or self._pending:
            return
        if self._expiry.is_busy or self._expired or self.cursors.is_busy:
            return  # what comes of the hook, or of the commits, calls this again
        closed, self._on_closed = self._on_closed, None
        if not self._marked_unclean or self._has_lost_files:
            closed()  # nothing was written in this run, so the files are as a clean stop left them
            return

        def work() -> Callable[[], None]:
            mark = self._commits.written
            self._clean_tail()
            topic_files.close_topic(
                self.active, self.producers, self.checkpoint, self._checkpoint_at(mark, clean=True)
            )
            now_s = self._scheduler.monotonic_s()
            return lambda: self._synced_to(mark, now_s, now_s)

        def done(then: Any, error: BaseException | None) -> None:
            if error is None:
                then()
            else:
                self._job_failed(error)
            closed()

        self._job_is_running = True
        self._scheduler.offload(work, done)

    # -- reading --------------------------------------------------------------------------------

    def wait(self, key: object, wake: Callable[[], None]) -> None:
        """Call `wake` once, as soon as there is more to read, or at the stop."""
        self._waiters[key] = wake

    def unwait(self, key: object) -> None:
        self._waiters.pop(key, None)

    def stats(self) -> dict[str, Any]:
        return {
            "topic": self.name,
            "id": self.id,
            "first": self.view.first,
            "next": self.view.next,
            "bytes": self.view.size,
            "partitions": len(self.view.partitions),
            "epoch": self._state.epoch,
            "epoch_began": self._state.began,
            "damages": len(self.damages),
            **self._expiry.stats(),
            "fsync": self._policy.mode,
            "unsynced_batches": self._commits.unsynced,
            "waiting_pushes": len(self._pending) + len(self.singles) + self._commits.awaiting,
            "waiting_reads": len(self._waiters),
            "producers": len(self.producers),
            "clock_behind_ms": self.clock_behind_ms,
            **self.cursors.stats(self.view.next),
        }


def _alone(content: Pushes | CheckedBatch) -> tuple[Buffer, int] | None:
    """Body and messages of what is one plain batch by itself, as all single messages are."""
    if not isinstance(content, Pushes) or len(content.bodies) > 1:
        return None
    return content.bodies[0], 1 if content.counts is None else content.counts[0]


def _attempt(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a thread would have made of it."""
    try:
        return work(), None
    except (OSError, SyncFailed) as error:
        return None, error
