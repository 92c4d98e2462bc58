"""What of a topic is written, what is synced, and who waits for the difference. Pure: no I/O.

A `Mark` is a place in the log. Between the synced one and the written one lie batches that a power
cut may take; with fsync=always the pushes in them wait here for their answer.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

from logd.storage.fsync_policy import FsyncPolicy, SyncSchedule


class Waiter(Protocol):
    """Whoever is answered after a sync: so many clients."""

    @property
    def clients(self) -> int: ...


T = TypeVar("T", bound=Waiter)
# A roll has to sync whatever its partition has unsynced, and pushes wait for it. So that this is
# never much, a sync starts beside the pushes once so much has gathered, in every mode.
_FAR_BYTES = 32 << 20


class LogPosition(NamedTuple):
    """A place in the log: everything before it has been written, or synced."""

    partition: int
    position: int
    next: int
    batches: int  # stored since the start


class GroupCommit(Generic[T]):
    """`T` is whatever waits for an answer."""

    def __init__(self, policy: FsyncPolicy) -> None:
        self.policy = policy
        self.written = self.synced = LogPosition(0, 0, 0, 0)
        self._gathering = SyncSchedule()
        self._awaiting: deque[tuple[int, list[T], int]] = deque()  # up to which offset, who
        self.awaiting = 0  # clients
        self._oldest_at_s = 0.0  # when the oldest unsynced batch was written, or before

    @property
    def unsynced(self) -> int:
        return self.written.batches - self.synced.batches

    def start_at(self, mark: LogPosition) -> None:
        """Everything is on disk up to here: at the start, and in a new partition."""
        self.written = self.synced = mark

    def wrote(self, mark: LogPosition, now_s: float) -> None:
        if not self.unsynced:
            self._oldest_at_s = now_s
        self.written = mark

    def await_sync(self, waiting: list[T]) -> bool:
        """Keep these until they are synced. False if they need not wait."""
        if not (self.policy.answers_wait and self.unsynced):
            return False
        clients = sum(waiter.clients for waiter in waiting)
        self._awaiting.append((self.written.next, waiting, clients))
        self.awaiting += clients
        return True

    def gather(self, clients: int, since_s: float, now_s: float) -> tuple[float, int]:
        """How much longer should these wait for others, nothing being written yet; and how many
        there will be then, so that it need not be so long."""
        wanted = self._gathering.wanted(now_s)
        if self.awaiting or clients >= wanted:
            return 0.0, 1
        return max(0.0, since_s + self._gathering.patience_s() - now_s), wanted

    def due_in_s(self, now_s: float) -> float | None:
        """How long until a sync should start; None for not at all."""
        if self.awaiting:
            if self.awaiting >= self._gathering.wanted(now_s):
                return 0.0
            return max(0.0, self._oldest_at_s + self._gathering.patience_s() - now_s)
        if self._is_far():
            return 0.0
        return self.policy.due_in_s(self.unsynced, now_s - self._oldest_at_s)

    def is_timed(self) -> bool:
        """Does the next sync start at the time that was said, whatever is written until then?"""
        return self.policy.mode == "interval" and not self._is_far()

    def _is_far(self) -> bool:
        return self.written.position - self.synced.position >= _FAR_BYTES

    def hold_back(self, now_s: float) -> bool:
        """Have syncs fallen so far behind that nothing more may be written?"""
        return self.policy.holds(self.unsynced, now_s - self._oldest_at_s)

    def room(self) -> int:
        """How many batches may be written before that."""
        return self.policy.room(self.unsynced)

    def is_quick(self) -> bool:
        """Are syncs so short that waiting for one costs less than handing it to a thread?"""
        return self.policy.answers_wait and self._gathering.is_quick()

    def synced_to(self, mark: LogPosition, started_at_s: float, ended_at_s: float) -> list[T]:
        """A sync has returned; it covered everything before `mark`. Who can be answered now?"""
        self.synced = mark
        self._oldest_at_s = started_at_s
        answered: list[T] = []
        clients = 0
        while self._awaiting and self._awaiting[0][0] <= mark.next:
            _, waiting, count = self._awaiting.popleft()
            answered += waiting
            clients += count
        self.awaiting -= clients
        self._gathering.synced(clients, self.awaiting, started_at_s, ended_at_s)
        return answered
