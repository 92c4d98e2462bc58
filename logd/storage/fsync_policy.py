"""When data has to be synced: pure decisions, no clock, no I/O.

A policy is asked after each write and each sync. `answers_wait` says whether an OK may be sent
before the sync; `due_in_s` when the next sync is due; `holds` whether pushes must wait for it. The
`Gathering` decides how long a group commit waits for company.
"""

from __future__ import annotations

from dataclasses import dataclass

_QUICK_S = 0.001  # a sync this short is done on the loop; handing it to a thread costs 0.1 ms
_FORGET = 0.9  # how much of a slow sync is remembered from one sync to the next
_IDLE_S = 1.0  # with fsync=batches: unsynced data gets no older than this, however few there are
_MAX_GATHER_S = 0.001


@dataclass(frozen=True, slots=True)
class FsyncPolicy:
    mode: str
    interval_s: float = 1.0
    batches: int = 1000

    @property
    def answers_wait(self) -> bool:
        return self.mode == "always"

    def due_in_s(self, unsynced_batches: int, oldest_s: float) -> float | None:
        """How long until a sync should start; None for not at all."""
        if self.mode == "never" or not unsynced_batches:
            return None
        if self.mode == "interval":
            return max(0.0, self.interval_s - oldest_s)
        if self.mode == "batches" and unsynced_batches < self.batches:
            return max(0.0, _IDLE_S - oldest_s)
        return 0.0

    def holds(self, unsynced_batches: int, oldest_s: float) -> bool:
        """Is so much unsynced that nothing may be added before a sync has finished?"""
        if self.mode == "interval":
            return bool(unsynced_batches) and oldest_s >= 2 * self.interval_s
        return self.mode == "batches" and unsynced_batches >= 2 * self.batches

    def room(self, unsynced_batches: int) -> int:
        """How many more batches may be stored before pushes have to wait."""
        return max(1, 2 * self.batches - unsynced_batches) if self.mode == "batches" else 1 << 30


class SyncSchedule:
    """How many pushes the next sync should wait for, and for how long.

    Clients that wait for their answer come back together, shortly after a sync has answered them.
    If the first to arrive started the next sync alone, they would split into two half-sized groups
    for good. So a sync waits until as many are there as were answered by the last one plus those
    that had arrived meanwhile, but never longer than half of what a sync takes.
    """

    def __init__(self) -> None:
        self._wanted = 1
        self._sync_s = 0.0
        self._slowest_s = 1.0  # lately; nothing is known at first
        self._ended_at = 0.0

    def synced(self, answered: int, waiting: int, started_at: float, ended_at: float) -> None:
        self._wanted = answered + waiting
        self._sync_s = ended_at - started_at
        self._slowest_s = max(self._sync_s, self._slowest_s * _FORGET)
        self._ended_at = ended_at

    def wanted(self, now: float) -> int:
        """As many pushes as are worth waiting for; 1 when those answered last have moved on."""
        return self._wanted if now - self._ended_at <= 2 * self._sync_s else 1

    def is_quick(self) -> bool:
        """Have syncs been so short lately that the loop may wait for one?"""
        return self._slowest_s < _QUICK_S

    def patience_s(self) -> float:
        return min(_MAX_GATHER_S, self._sync_s / 2)
