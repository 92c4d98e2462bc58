"""A topic's cursors while the daemon runs: who stands where, and the commits on their way.

Lives on the loop's thread. Files are touched by jobs off it, one at a time: all commits that came
during one go into the next. Always: a commit is answered after the write that holds it, and with
fsync=always after its sync; nobody sees it before. Commits count as batches do in the policy, so
what a power cut may take of either is the same. Knows nothing of topics, sockets or requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from logd.errors import Faulted, LogdError, NotFound, ShuttingDown, TopicLimit
from logd.storage.cursors import Committed, CursorFile, changed, lag
from logd.storage.disk import SyncFailed, refusal
from logd.storage.fsync_policy import FsyncPolicy

_GROUP_COMMITS = 1000
_SHOWN = 100  # cursors in STATS

Answer = Callable[[LogdError | None], None]
Offload = Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None]


class _Pending(NamedTuple):
    name: str
    offset: int | None  # None: the cursor goes
    answer: Answer


class TopicCursors:
    def __init__(
        self,
        directory: Path,
        policy: FsyncPolicy,
        max_cursors: int,
        offload: Offload,
        later: Callable[[float, Callable[[], None]], object],
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        failed: Callable[[BaseException], None],
        idle: Callable[[], None],
    ) -> None:
        self.cursors: dict[str, Committed] = {}
        self._file = CursorFile(directory)
        self._policy, self.max_cursors = policy, max_cursors
        self._offload, self._later = offload, later
        self._now_ms, self._monotonic_s = now_ms, monotonic_s
        self._failed = failed  # hears of a sync that failed
        self._idle = idle  # hears that a stop may go on
        self._pending: deque[_Pending] = deque()
        self._job_is_running = False
        self._timer_is_set = False
        self._unsynced = 0  # commits
        self._oldest_at_s = 0.0  # when the first of them was written, or before
        self._is_closing = False

    def take(self, file: CursorFile) -> None:
        """At the start: the file as recovery left it."""
        self._file, self.cursors = file, file.saved.cursors

    @property
    def notes(self) -> list[str]:
        return self._file.notes

    @property
    def is_busy(self) -> bool:
        return self._job_is_running or bool(self._pending or self._unsynced)

    # -- asking ---------------------------------------------------------------------------------

    def find(self, name: str) -> Committed:
        place = self.cursors.get(name)
        if place is None:
            raise self._unknown(name)
        return place

    def _unknown(self, name: str) -> LogdError:
        if self._file.lost:
            return Faulted(
                f"cursor {name} is not known, and may be one that was lost with a damaged file;"
                " COMMIT where to go on, or stop the daemon and run log-cli repair --accept-loss"
            )
        return NotFound(f"no cursor {name} in this topic; COMMIT makes it")

    def rows(self, next_: int) -> list[tuple[str, int, int, int]]:
        """Name, offset, lag and time of the last commit of each cursor."""
        return [
            (name, place.offset, lag(place.offset, next_), place.time_ms)
            for name, place in sorted(self.cursors.items())
        ]

    def stats(self, next_: int) -> dict[str, Any]:
        shown = sorted(self.cursors.items())[:_SHOWN]
        values: dict[str, Any] = {
            "cursors": len(self.cursors),
            "cursors_lost": int(self._file.lost),
            "unsynced_commits": self._unsynced,
            "waiting_commits": len(self._pending),
        }
        for name, place in shown:
            values[f"cursor.{name}"] = f"{place.offset} lag={lag(place.offset, next_)}"
        if len(self.cursors) > _SHOWN:
            values["cursors_not_shown"] = len(self.cursors) - _SHOWN
        return values

    # -- committing -----------------------------------------------------------------------------

    def commit(self, name: str, offset: int | None, answer: Answer) -> None:
        """Move a cursor, or make it, or with None remove it; `answer` hears how that went."""
        if self._is_closing:
            answer(ShuttingDown("the daemon is stopping; connect again in a moment"))
            return
        self._pending.append(_Pending(name, offset, answer))
        self._go_on()

    def _go_on(self) -> None:
        """Start the next job, unless one runs."""
        if self._job_is_running:
            return
        if self._sync_is_due():
            self._run(self._file.sync, self._synced)
        elif self._pending:
            self._write_group()
        elif self._is_closing:
            self._idle()

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
        before, began_at_s = self.cursors, self._monotonic_s()

        def work() -> None:
            self._file.write(changes, before)
            if self._policy.answers_wait:
                self._file.sync()

        def done(error: BaseException | None) -> None:
            if error is None:
                self.cursors = changed(before, changes)
                self._wrote(len(waiting), began_at_s)
            for pending in waiting:
                pending.answer(None if error is None else refusal(error))

        if waiting:
            self._run(work, done)
        for answer, reason in refused:
            answer(reason)
        if not waiting:
            self._go_on()

    def _checked(self, pending: _Pending, changes: dict[str, Committed | None]) -> Committed | None:
        """What the commit makes of its cursor, behind those of its group that came before it."""
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
                    f"there are {count} cursors in this topic already; remove one with"
                    " COMMIT <topic> <name> -, or raise max-cursors"
                )
        return Committed(pending.offset, self._now_ms())

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
        due_in_s = self._policy.due_in_s(self._unsynced, self._monotonic_s() - self._oldest_at_s)
        if due_in_s and not self._timer_is_set:
            self._timer_is_set = True
            self._later(due_in_s, self._timer_fired)
        return due_in_s == 0

    def _timer_fired(self) -> None:
        self._timer_is_set = False
        self._go_on()

    def _run(self, work: Callable[[], Any], done: Callable[[BaseException | None], None]) -> None:
        """The one job: off the loop, then `done` on it, then whatever came meanwhile."""

        def ended(_: Any, error: BaseException | None) -> None:
            if isinstance(error, SyncFailed):
                self._failed(error)
            done(error)
            self._job_is_running = False
            self._go_on()

        self._job_is_running = True
        self._offload(work, ended)

    def close(self) -> None:
        """Take no more, write and sync what there is; `idle` is called once that is done."""
        self._is_closing = True
        self._go_on()
