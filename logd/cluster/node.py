"""What a node of a cluster does next: a state machine without I/O.

The caller reports what happened (`register_read`, `leader_lost`, `acknowledged`, …) and carries out
the actions that are returned, in order. So the same code decides in the daemon and in a simulation.
Safety depends on no clock: times decide only when something is tried. Always: a node leads only in
an epoch whose compare-and-set it saw confirmed in this process; it persists an epoch before it
leads or follows in it, and takes part in no lower one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from logd.cluster.register import ClusterState, Versioned
from logd.cluster.replicas import Ends, Replicas, Stream

FIRST_EPOCH = 1


class Role(Enum):
    STARTING = "starting"  # does not know the leader
    FOLLOWER = "follower"
    CANDIDATE = "candidate"  # the leader is lost
    LEADER = "leader"


class ReadRegister(NamedTuple):
    """Read it linearizably; then call `register_read` or `register_failed`."""


class CompareAndSet(NamedTuple):
    """Then call `register_set` or `register_set_unknown`."""

    state: ClusterState
    revision: int


class Persist(NamedTuple):
    """Write the highest epoch and the suspicion to disk and sync them, before what follows."""

    epoch: int
    is_suspect: bool


class FollowLeader(NamedTuple):
    """Open a stream to this node in place of any other."""

    leader: str
    epoch: int


class Lead(NamedTuple):
    """Accept pushes, and streams of followers in this epoch."""

    epoch: int


class StepDown(NamedTuple):
    """Acknowledge nothing more, close all streams."""


class CloseStream(NamedTuple):
    number: int


class ClearSuspicion(NamedTuple):
    """Tell the follower of this stream that it has all that it may have lost."""

    number: int


Action = (
    ReadRegister | CompareAndSet | Persist | FollowLeader | Lead | StepDown | CloseStream
    | ClearSuspicion
)  # fmt: skip


class Timing(NamedTuple):
    leader_timeout_s: float = 3.0
    replica_lag_s: float = 10.0
    retry_s: float = 0.2  # between two reads of the register while there is no leader


class Node:
    def __init__(
        self, name: str, *, epoch: int, is_suspect: bool, min_in_sync: int, timing: Timing
    ) -> None:
        self.name, self.epoch, self.is_suspect = name, epoch, is_suspect
        self.role = Role.STARTING
        self.replicas: Replicas | None = None  # of a leader
        self.ends: dict[str, int] = {}  # of its own topics
        self._min_in_sync, self._timing = min_in_sync, timing
        self._view = Versioned(None, 0)
        self._sent: ClusterState | None = None  # a compare-and-set that is not answered
        self._is_reading = False
        self._unknown: dict[int, list[ClusterState]] = {}  # by revision: may be applied, or not
        self._read_at_s = self._heard_at_s = float("-inf")

    # -- the register ---------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Action]:
        """Called often: starts what is due."""
        if self.role is Role.FOLLOWER:
            if now_s - self._heard_at_s <= self._timing.leader_timeout_s:
                return []
            self.role = Role.CANDIDATE
        if self._is_reading or self._sent is not None:
            return []
        if self.role is not Role.LEADER:
            return self._read(now_s, self._timing.retry_s)
        assert self.replicas is not None
        for stream in self.replicas.streams.values():
            stream.note_progress(self.ends, now_s)
        cleared = self.replicas.cleared()
        if cleared:
            return [ClearSuspicion(number) for number in cleared]
        if self._unknown:
            return self._read(now_s, self._timing.retry_s)
        in_sync = self.replicas.change(self._timing.replica_lag_s, now_s)
        if in_sync is None:  # somebody else may lead: this is how a node that slept notices
            return self._read(now_s, self._timing.leader_timeout_s)
        self.replicas.propose(in_sync)
        return self._send(self._state(self.epoch, in_sync))

    def _read(self, now_s: float, every_s: float) -> list[Action]:
        if now_s - self._read_at_s < every_s:
            return []
        self._is_reading, self._read_at_s = True, now_s
        return [ReadRegister()]

    def _send(self, state: ClusterState) -> list[Action]:
        self._sent = state
        return [CompareAndSet(state, self._view.revision)]

    def _state(self, epoch: int, in_sync: frozenset[str]) -> ClusterState:
        minimum = self._view.state.min_in_sync if self._view.state else self._min_in_sync
        return ClusterState(epoch, self.name, tuple(sorted(in_sync)), minimum)

    def register_failed(self) -> list[Action]:
        """The register could not be read; the next tick tries again."""
        self._is_reading = False
        return []

    def register_read(self, view: Versioned, now_s: float) -> list[Action]:
        self._is_reading = False
        if view.revision < self._view.revision:
            return []  # read before something that is known
        was_attempted = view.state in self._unknown.get(self._view.revision, [])
        if view.revision != self._view.revision:
            self._unknown.clear()  # nothing that was sent for another revision can be applied now
        self._view = view
        state = view.state
        if state is None:
            return self._found()
        if state.leader != self.name:
            return self._see_leader(state, now_s)
        if self.role is Role.LEADER and state.epoch == self.epoch:
            return self._see_own_set(state)
        if was_attempted:
            return self._become_leader(state)
        return self._stand(state)  # an earlier process of this node led

    def _found(self) -> list[Action]:
        """There is no cluster yet. A node that has been in one does not make another."""
        if self.epoch or self.is_suspect or self._unknown:
            return []
        return self._send(self._state(FIRST_EPOCH, frozenset({self.name})))

    def _see_own_set(self, state: ClusterState) -> list[Action]:
        assert self.replicas is not None
        if not self._unknown:
            self.replicas.settle(state.in_sync)
            return []
        last = self._unknown[self._view.revision][-1]
        return self._send(last)  # not applied so far: only an answer ends the doubt

    def _see_leader(self, state: ClusterState, now_s: float) -> list[Action]:
        """Another node leads."""
        actions: list[Action] = []
        if self.role is Role.LEADER:
            actions = self._step_down()
        if self.role is Role.CANDIDATE and state.epoch <= self.epoch and self._may_lead(state):
            return [*actions, *self._stand(state)]
        if state.epoch < self.epoch:
            return actions  # cannot happen unless the register was restored from a backup
        self.role, self._heard_at_s = Role.FOLLOWER, now_s
        if state.epoch > self.epoch:
            self.epoch = state.epoch
            actions.append(self._persist())
        return [*actions, FollowLeader(state.leader, state.epoch)]

    # -- election -------------------------------------------------------------------------------

    def _stand(self, state: ClusterState) -> list[Action]:
        """Try to lead the next epoch. The old leader stays in the set if it would be too small."""
        self.role = Role.CANDIDATE
        if not self._may_lead(state):
            return []
        in_sync = frozenset(state.in_sync)
        without = in_sync - {state.leader} | {self.name}
        if len(without) >= state.min_in_sync:
            in_sync = without
        return self._send(self._state(state.epoch + 1, in_sync))

    def _may_lead(self, state: ClusterState) -> bool:
        """Does it have everything that was acknowledged? In a set that never had the minimal size
        nothing could be acknowledged, and so nothing lost."""
        was_writable = len(state.in_sync) >= state.min_in_sync
        return self.name in state.in_sync and not (self.is_suspect and was_writable)

    def register_set(self, revision: int | None, now_s: float) -> list[Action]:
        """The reply to a compare-and-set; None: the register has changed."""
        sent, self._sent = self._sent, None
        assert sent is not None
        if revision is None:
            self._read_at_s = float("-inf")
            return self._read(now_s, 0.0)
        self._view = Versioned(sent, revision)
        self._unknown.clear()
        if self.role is Role.LEADER and sent.epoch == self.epoch:
            assert self.replicas is not None
            self.replicas.settle(sent.in_sync)
            return []
        return self._become_leader(sent)

    def register_set_unknown(self) -> list[Action]:
        """No reply: it may be applied, now or later."""
        assert self._sent is not None
        self._unknown.setdefault(self._view.revision, []).append(self._sent)
        self._sent = None
        return []

    def _become_leader(self, state: ClusterState) -> list[Action]:
        self.role, self.epoch = Role.LEADER, state.epoch
        self.is_suspect = False
        self.replicas = Replicas(self.name, state.in_sync, state.min_in_sync, self.ends)
        return [self._persist(), Lead(state.epoch)]

    def _persist(self) -> Persist:
        return Persist(self.epoch, self.is_suspect)

    def _step_down(self) -> list[Action]:
        self.role, self.replicas = Role.STARTING, None
        return [StepDown()]

    # -- as a follower --------------------------------------------------------------------------

    def leader_heard(self, now_s: float) -> None:
        self._heard_at_s = now_s

    def leader_lost(self) -> list[Action]:
        """Its process has gone: nothing listens at its address."""
        if self.role is Role.FOLLOWER:
            self.role = Role.CANDIDATE
            self._read_at_s = float("-inf")
        return []

    def suspicion_cleared(self) -> list[Action]:
        """The leader says that this node has all that it may have lost."""
        self.is_suspect = False
        return [self._persist()]

    def seen_epoch(self, epoch: int) -> list[Action]:
        """Another node knows a higher epoch than the leader does."""
        if epoch <= self.epoch or self.role is not Role.LEADER:
            return []
        self._read_at_s = float("-inf")
        return self._step_down()

    # -- as the leader --------------------------------------------------------------------------

    def stream_opened(
        self, node: str, number: int, epoch: int, *, is_suspect: bool, now_s: float
    ) -> list[Action]:
        if self.replicas is None or epoch != self.epoch:
            return [CloseStream(number), *self.seen_epoch(epoch)]
        stream = Stream(node, number, self.ends, now_s)
        stream.is_suspect = is_suspect
        replaced = self.replicas.open(stream)
        return [CloseStream(replaced.number)] if replaced is not None else []

    def stream_closed(self, number: int, now_s: float) -> None:
        if self.replicas is not None:
            self.replicas.close(number, now_s)

    def acknowledged(self, number: int, topic: str, end: int) -> int | None:
        """The committed offset of the topic, if this acknowledgement counts."""
        if self.replicas is None or not self.replicas.acknowledge(number, topic, end):
            return None
        return self.replicas.commit(topic, self.ends.get(topic, 0))

    def wrote(self, ends: Ends) -> None:
        """This node has stored its topics up to here, and synced them if its mode demands it."""
        self.ends.update(ends)
