"""The cursors of an open topic: committed offsets by name, and the commits being stored.

Commits are stored in groups: a background job writes one, and all commits that arrive meanwhile
form the next. Always: a commit is acknowledged after it is written, with fsync=always after it is
synced, and is not visible before. Commits count like batches in the fsync policy, so a power
failure loses no more of them. Knows nothing of sockets or requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logd.errors import Faulted, LogdError, NotFound, ShuttingDown, TopicLimit
from logd.storage.cursors import Committed, CursorFile, changed, lag
from logd.storage.disk import SyncFailed, refusal
from logd.storage.fsync_policy import FsyncPolicy
from logd.storage.scheduler import BackgroundJob, Scheduler

_GROUP_COMMITS = 1000
_LISTED = 100  # cursors in STATS

Answer = Callable[[LogdError | None], None]


class _Pending(NamedTuple):
    name: str
    offset: int | None  # None: remove the cursor
    answer: Answer


class CursorsTopic(Protocol):
    """What the cursors need of their topic."""

    directory: Path

    def job_failed(self, error: BaseException) -> None: ...
    def turn_soon(self) -> None: ...


class TopicCursors:
    def __init__(
        self, policy: FsyncPolicy, max_cursors: int, scheduler: Scheduler, topic: CursorsTopic
    ) -> None:
        self.cursors: dict[str, Committed] = {}
        self.max_cursors = max_cursors
        self._file = CursorFile(topic.directory)
        self._policy, self._scheduler, self._topic = policy, scheduler, topic
        self._job = BackgroundJob(scheduler, self._continue)
        self._pending: deque[_Pending] = deque()
        self._timer_is_set = False
        self._unsynced = 0  # commits
        self._oldest_at_s = 0.0  # when the first of them was written, or before
        self._is_closing = False

    def open(self, file: CursorFile) -> None:
        """Use the file as recovery left it."""
        self._file, self.cursors = file, file.saved.cursors

    @property
    def notes(self) -> list[str]:
        return self._file.notes

    @property
    def is_busy(self) -> bool:
        return self._job.is_running or bool(self._pending or self._unsynced)

    # -- queries --------------------------------------------------------------------------------

    def find(self, name: str) -> Committed:
        place = self.cursors.get(name)
        if place is None:
            raise self._unknown(name)
        return place

    def _unknown(self, name: str) -> LogdError:
        if self._file.lost:
            return Faulted(
                f"cursor {name} is unknown and may have been lost with a damaged file; COMMIT the"
                " offset to resume from, or stop the daemon and run log-cli repair --accept-loss"
            )
        return NotFound(f"no cursor {name} in this topic; COMMIT creates it")

    def rows(self, next_: int) -> list[tuple[str, int, int, int]]:
        """Name, offset, lag and time of the last commit of each cursor."""
        return [
            (name, place.offset, lag(place.offset, next_), place.time_ms)
            for name, place in sorted(self.cursors.items())
        ]

    def stats(self, next_: int) -> dict[str, Any]:
        shown = sorted(self.cursors.items())[:_LISTED]
        values: dict[str, Any] = {
            "cursors": len(self.cursors),
            "cursors_lost": int(self._file.lost),
            "unsynced_commits": self._unsynced,
            "waiting_commits": len(self._pending),
        }
        for name, place in shown:
            values[f"cursor.{name}"] = f"{place.offset} lag={lag(place.offset, next_)}"
        if len(self.cursors) > _LISTED:
            values["cursors_not_shown"] = len(self.cursors) - _LISTED
        return values

    # -- committing -----------------------------------------------------------------------------

    def commit(self, name: str, offset: int | None, answer: Answer) -> None:
        """Create or move a cursor, or remove it with None; `answer` receives None or the error."""
        if self._is_closing:
            answer(ShuttingDown("the daemon is stopping; reconnect in a moment"))
            return
        self._pending.append(_Pending(name, offset, answer))
        self._continue()

    def _continue(self) -> None:
        """Start the next job, unless one is running."""
        if self._job.is_running:
            return
        if self._sync_is_due():
            self._start(self._file.sync, self._synced)
        elif self._pending:
            self._write_group()
        elif self._is_closing:
            self._topic.turn_soon()

    def _write_group(self) -> None:
        waiting, refused = list[_Pending](), list[tuple[Answer, LogdError]]()
        changes: dict[str, Committed | None] = {}
        room = min(_GROUP_COMMITS, self._policy.room(self._unsynced))
        while self._pending and len(waiting) < room:
            pending = self._pending.popleft()
            try:
                changes[pending.name] = self._checked(pending, changes)
                waiting.append(pending)
            except LogdError as error:
                refused.append((pending.answer, error))
        before, began_at_s = self.cursors, self._scheduler.monotonic_s()

        def work() -> None:
            self._file.write(changes, before)
            if self._policy.acks_wait:
                self._file.sync()

        def done(error: BaseException | None) -> None:
            if error is None:
                self.cursors = changed(before, changes)
                self._wrote(len(waiting), began_at_s)
            for pending in waiting:
                pending.answer(None if error is None else refusal(error))

        if waiting:
            self._start(work, done)
        for answer, reason in refused:
            answer(reason)
        if not waiting:
            self._continue()

    def _checked(self, pending: _Pending, changes: dict[str, Committed | None]) -> Committed | None:
        """The cursor after this commit, which follows the earlier `changes` of its group."""
        known = changes.get(pending.name, self.cursors.get(pending.name))
        if pending.offset is None:
            if known is None:
                raise self._unknown(pending.name)
            return None
        if known is None:
            count = len(self.cursors) + sum(
                (place is not None) - (name in self.cursors) for name, place in changes.items()
            )
            if count >= self.max_cursors:
                raise TopicLimit(
                    f"the topic already has {count} cursors; remove one with"
                    " COMMIT <topic> <name> -, or raise max-cursors"
                )
        return Committed(pending.offset, self._scheduler.now_ms())

    # -- syncing --------------------------------------------------------------------------------

    def _wrote(self, commits: int, began_at_s: float) -> None:
        if self._file.is_synced:
            self._unsynced = 0
            return
        if not self._unsynced:
            self._oldest_at_s = began_at_s
        self._unsynced += commits

    def _synced(self, error: BaseException | None) -> None:
        if error is None:
            self._unsynced = 0

    def _sync_is_due(self) -> bool:
        if self._is_closing and not self._pending:
            return self._unsynced > 0
        due_in_s = self._policy.due_in_s(
            self._unsynced, self._scheduler.monotonic_s() - self._oldest_at_s
        )
        if due_in_s and not self._timer_is_set:
            self._timer_is_set = True
            self._scheduler.later(due_in_s, self._timer_fired)
        return due_in_s == 0

    def _timer_fired(self) -> None:
        self._timer_is_set = False
        self._continue()

    def _start(self, work: Callable[[], Any], done: Callable[[BaseException | None], None]) -> None:
        def finish(_: Any, error: BaseException | None) -> None:
            if isinstance(error, SyncFailed):
                self._topic.job_failed(error)
            done(error)

        self._job.start(work, finish)

    def close(self) -> None:
        """Refuse new commits, write and sync the others, then let the topic continue its stop."""
        self._is_closing = True
        self._continue()
