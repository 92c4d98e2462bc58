"""When data has to be synced: pure decisions, no clock, no I/O.

The policy is asked after each write and each sync. `CommitDelay` decides how long a group commit
waits for more pushes, like commit_delay and commit_siblings of PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass

_FAST_SYNC_S = 0.001  # a shorter sync runs on the event loop: using a thread costs 0.1 ms
_DECAY = 0.9  # of the slowest sync, from one sync to the next
_MAX_UNSYNCED_S = 1.0  # with fsync=batches, how old unsynced data gets if there is little of it
_MAX_DELAY_S = 0.001


@dataclass(frozen=True, slots=True)
class FsyncPolicy:
    mode: str
    interval_s: float = 1.0
    batches: int = 1000

    @property
    def acks_wait(self) -> bool:
        """Is a push acknowledged only after the sync?"""
        return self.mode == "always"

    def due_in_s(self, unsynced_batches: int, oldest_s: float) -> float | None:
        """How long until a sync should start; None if none is due."""
        if self.mode == "never" or not unsynced_batches:
            return None
        if self.mode == "interval":
            return max(0.0, self.interval_s - oldest_s)
        if self.mode == "batches" and unsynced_batches < self.batches:
            return max(0.0, _MAX_UNSYNCED_S - oldest_s)
        return 0.0

    def must_wait(self, unsynced_batches: int, oldest_s: float) -> bool:
        """Is so much unsynced that nothing may be written before a sync has finished?"""
        if self.mode == "interval":
            return bool(unsynced_batches) and oldest_s >= 2 * self.interval_s
        return self.mode == "batches" and unsynced_batches >= 2 * self.batches

    def room(self, unsynced_batches: int) -> int:
        """How many more batches may be written before pushes must wait."""
        return max(1, 2 * self.batches - unsynced_batches) if self.mode == "batches" else 1 << 30


class CommitDelay:
    """How many pushes the next sync should wait for, and for how long.

    Clients that wait for their reply send the next push together, shortly after a sync. If the
    first push started the next sync alone, they would stay split into two groups of half the size.
    So a sync waits for as many pushes as the last one acknowledged plus those that had arrived
    meanwhile, but never longer than half of the duration of a sync.
    """

    def __init__(self) -> None:
        self._wanted = 1
        self._sync_s = 0.0
        self._slowest_s = 1.0  # recently; assumed until there was one
        self._ended_at = 0.0

    def synced(self, acked: int, waiting: int, started_at: float, ended_at: float) -> None:
        self._wanted = acked + waiting
        self._sync_s = ended_at - started_at
        self._slowest_s = max(self._sync_s, self._slowest_s * _DECAY)
        self._ended_at = ended_at

    def wanted(self, now: float) -> int:
        """How many pushes to wait for; 1 if the clients of the last sync do not push again."""
        return self._wanted if now - self._ended_at <= 2 * self._sync_s else 1

    def is_fast(self) -> bool:
        """Have syncs been so short recently that the event loop may wait for one?"""
        return self._slowest_s < _FAST_SYNC_S

    def max_s(self) -> float:
        """How long the next sync may wait."""
        return min(_MAX_DELAY_S, self._sync_s / 2)
