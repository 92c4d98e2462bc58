"""What the leader of an epoch knows about the other nodes: acknowledgements, commits, membership.

A position is the end of every topic by name. Acknowledgements belong to one stream, and all of them
begin with the epoch, because this object does. Always: a message is committed only if the leader
and every node that may be in the in-sync set have acknowledged it. While the outcome of a change of
the set is unknown, those are the nodes of the old and of the new set. Pure: the caller sends, waits
and has the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Ends = Mapping[str, int]


class Stream:
    """One connection of a follower, from its first to its last message."""

    def __init__(self, node: str, number: int, leader_ends: Ends, now_s: float) -> None:
        self.node, self.number = node, number
        self.acked: dict[str, int] = {}
        self.is_suspect = False
        self.opened_ends = dict(leader_ends)
        self.level_at_s = now_s  # when it last had everything that the leader had
        self._mark_ends, self._mark_s = self.opened_ends, now_s

    def has(self, ends: Ends) -> bool:
        """Has it acknowledged all of this? A topic that it does not mention is not there."""
        acked = self.acked
        return all(acked.get(topic, -1) >= end for topic, end in ends.items())

    def note_progress(self, leader_ends: Ends, now_s: float) -> None:
        """Under a constant load a follower never has the current end. It is level as of a moment
        if it has what the leader had at that moment."""
        if self.has(self._mark_ends):
            self.level_at_s = self._mark_s
            self._mark_ends, self._mark_s = dict(leader_ends), now_s


class Replicas:
    def __init__(
        self, leader: str, in_sync: Iterable[str], min_in_sync: int, election_ends: Ends
    ) -> None:
        self.leader, self.min_in_sync = leader, min_in_sync
        self.in_sync = frozenset(in_sync)
        self.streams: dict[str, Stream] = {}  # by node
        self.absent_since_s: dict[str, float] = {}  # nodes without a stream
        self.committed: dict[str, int] = {}
        self._election_ends = dict(election_ends)
        self._proposed: list[frozenset[str]] = []  # sets that may be in the register, or soon

    # -- streams --------------------------------------------------------------------------------

    def open(self, stream: Stream) -> Stream | None:
        """Use this stream; returns the one it replaces, whose acknowledgements count no longer."""
        self.absent_since_s.pop(stream.node, None)
        old = self.streams.get(stream.node)
        self.streams[stream.node] = stream
        return old

    def close(self, number: int, now_s: float) -> None:
        for node, stream in list(self.streams.items()):
            if stream.number == number:
                del self.streams[node]
                self.absent_since_s[node] = now_s

    def acknowledge(self, number: int, topic: str, end: int) -> bool:
        """A follower has stored a topic up to `end`. False: not on a stream that counts."""
        for stream in self.streams.values():
            if stream.number == number:
                stream.acked[topic] = max(end, stream.acked.get(topic, 0))
                return True
        return False

    # -- commits --------------------------------------------------------------------------------

    @property
    def required(self) -> frozenset[str]:
        """The other nodes that must have a message before it is committed."""
        return self.in_sync.union(*self._proposed) - {self.leader}

    def commit(self, topic: str, own_end: int) -> int:
        """The committed offset of a topic that the leader itself has stored up to `own_end`."""
        end = own_end
        for node in self.required:
            stream = self.streams.get(node)
            end = min(end, stream.acked.get(topic, 0) if stream is not None else 0)
        end = max(end, self.committed.get(topic, 0))
        self.committed[topic] = end
        return end

    @property
    def is_writable(self) -> bool:
        """Do enough nodes of the in-sync set have a stream?"""
        live = sum(node == self.leader or node in self.streams for node in self.in_sync)
        return live >= self.min_in_sync

    # -- membership -----------------------------------------------------------------------------

    def is_caught_up(self, node: str) -> bool:
        """Does it have everything that may have been acknowledged in earlier epochs? A committed
        offset that the leader happens to know is not enough: the leader's log at its election is.
        A suspect node may miss what it acknowledged itself, so it needs what the leader had when
        the stream was opened."""
        stream = self.streams.get(node)
        if stream is None or not stream.has(self.committed) or not stream.has(self._election_ends):
            return False
        return not stream.is_suspect or stream.has(stream.opened_ends)

    def cleared(self) -> list[int]:
        """Streams of nodes that are suspect no longer: in the set, and with all they may miss."""
        numbers = []
        for node in sorted(self.in_sync & self.streams.keys()):
            stream = self.streams[node]
            if stream.is_suspect and self.is_caught_up(node):
                stream.is_suspect = False
                numbers.append(stream.number)
        return numbers

    def change(self, max_lag_s: float, now_s: float) -> frozenset[str] | None:
        """The set that should be in the register, if it is another one: first a node that has
        caught up is added, then one that does not keep up is removed."""
        for node in sorted(self.streams.keys() - self.in_sync):
            if self.is_caught_up(node):
                return self.in_sync | {node}
        if len(self.in_sync) <= self.min_in_sync:
            return None
        for node in sorted(self.in_sync - {self.leader}):
            stream = self.streams.get(node)
            if stream is not None:
                since_s = stream.level_at_s
            else:
                since_s = self.absent_since_s.setdefault(node, now_s)
            if now_s - since_s > max_lag_s:
                return self.in_sync - {node}
        return None

    def propose(self, in_sync: frozenset[str]) -> None:
        """This set is about to be sent to the register: from now on its nodes count."""
        self._proposed.append(in_sync)

    def settle(self, in_sync: Iterable[str]) -> None:
        """This set is in the register, and no proposal can be applied any more."""
        self.in_sync = frozenset(in_sync)
        self._proposed.clear()
