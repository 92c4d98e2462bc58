"""How much of a topic is written, how much is synced, and the pushes waiting for fsync.

Batches between the two positions may be lost in a power failure; with fsync=always the pushes in
them wait here for their acknowledgement. Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from logd.storage.fsync_policy import CommitDelay, FsyncPolicy
from logd.storage.write_group import PendingPush

# A roll syncs what its partition has unsynced, and pushes wait for that. To keep it short, a sync
# starts in every mode once this much is unsynced.
_MAX_UNSYNCED_BYTES = 32 << 20


class LogPosition(NamedTuple):
    """A position in the log: everything before it has been written, or synced."""

    partition: int
    position: int
    next: int
    batches: int  # stored since the start


class GroupCommit:
    def __init__(self, policy: FsyncPolicy) -> None:
        self.policy = policy
        self.written = self.synced = LogPosition(0, 0, 0, 0)
        self._commit_delay = CommitDelay()
        self._awaiting: deque[tuple[int, list[PendingPush], int]] = deque()  # up to an offset
        self.awaiting = 0  # clients
        self._oldest_at_s = 0.0  # when the oldest unsynced batch was written, or before

    @property
    def unsynced(self) -> int:
        return self.written.batches - self.synced.batches

    def start_at(self, end: LogPosition) -> None:
        """Everything up to here is on disk: at the start, and in a new partition."""
        self.written = self.synced = end

    def wrote(self, end: LogPosition, now_s: float) -> None:
        if not self.unsynced:
            self._oldest_at_s = now_s
        self.written = end

    def await_sync(self, pushes: list[PendingPush]) -> bool:
        """Keep these pushes until they are synced; False if they need not wait."""
        if not (self.policy.acks_wait and self.unsynced):
            return False
        clients = sum(push.clients for push in pushes)
        self._awaiting.append((self.written.next, pushes, clients))
        self.awaiting += clients
        return True

    def delay(self, clients: int, since_s: float, now_s: float) -> tuple[float, int]:
        """How much longer unwritten pushes should wait for others, and how many pushes end the
        wait early."""
        wanted = self._commit_delay.wanted(now_s)
        if self.awaiting or clients >= wanted:
            return 0.0, 1
        return max(0.0, since_s + self._commit_delay.max_s() - now_s), wanted

    def due_in_s(self, now_s: float) -> float | None:
        """How long until a sync should start; None if none is due."""
        if self.awaiting:
            if self.awaiting >= self._commit_delay.wanted(now_s):
                return 0.0
            return max(0.0, self._oldest_at_s + self._commit_delay.max_s() - now_s)
        if self._has_much_unsynced():
            return 0.0
        return self.policy.due_in_s(self.unsynced, now_s - self._oldest_at_s)

    def is_timed(self) -> bool:
        """Does the next sync start at a fixed time, whatever is written until then?"""
        return self.policy.mode == "interval" and not self._has_much_unsynced()

    def _has_much_unsynced(self) -> bool:
        return self.written.position - self.synced.position >= _MAX_UNSYNCED_BYTES

    def must_wait(self, now_s: float) -> bool:
        """Is so much unsynced that nothing more may be written?"""
        return self.policy.must_wait(self.unsynced, now_s - self._oldest_at_s)

    def room(self) -> int:
        """How many batches may be written before pushes must wait."""
        return self.policy.room(self.unsynced)

    def is_fast(self) -> bool:
        """Are syncs so short that waiting for one costs less than using a thread?"""
        return self.policy.acks_wait and self._commit_delay.is_fast()

    def synced_to(
        self, end: LogPosition, started_at_s: float, ended_at_s: float
    ) -> list[PendingPush]:
        """A sync of everything before `end` has returned: the pushes to acknowledge."""
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
