"""A register in memory, for tests of the decisions of a cluster, with the faults of a real one.

register = MemoryRegister()
register.plan = iter([LOST, LATE])  # of the next calls; without a plan, all succeed
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from logd.cluster.register import ClusterState, Versioned
from logd.errors import OutcomeUnknown, RegisterUnavailable

SOUND, UNAVAILABLE = "sound", "unavailable"
APPLIED, LOST, LATE = "applied", "lost", "late"  # outcomes that the caller does not learn


class MemoryRegister:
    """LATE compare-and-sets are applied by `deliver`, if the revision is still theirs."""

    def __init__(self) -> None:
        self.current = Versioned(None, 0)
        self.plan: Iterator[str] = iter(())
        self._revision = 0
        self._late: list[tuple[ClusterState, int]] = []
        self._lock = threading.Lock()

    def get(self, timeout_s: float) -> Versioned:
        with self._lock:
            if next(self.plan, SOUND) != SOUND:
                raise RegisterUnavailable("planned")
            return self.current

    def compare_and_set(self, state: ClusterState, revision: int, timeout_s: float) -> int | None:
        with self._lock:
            match next(self.plan, SOUND):
                case "sound":
                    return self._set(state, revision)
                case "unavailable":
                    raise RegisterUnavailable("planned")
                case "applied":
                    self._set(state, revision)
                case "late":
                    self._late.append((state, revision))
            raise OutcomeUnknown("planned")

    def deliver(self) -> None:
        """Apply what arrives late, in the order in which it was sent."""
        with self._lock:
            for state, revision in self._late:
                self._set(state, revision)
            self._late.clear()

    def _set(self, state: ClusterState, revision: int) -> int | None:
        if revision != self.current.revision:
            return None
        self._revision += 1
        self.current = Versioned(ClusterState.decode(state.encode()), self._revision)
        return self._revision
