"""Any order of pushes, reads, stalls, other commands and ends: each stream is complete, in order.

What a client receives must be complete replies without a gap or a repetition, from where it started
up to the end of the topic, and one last line when the stream ends. A client that does not read
costs a bounded amount of memory, and in the end nothing of any stream is left.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logd.net import follow
from logd.net.follow import HEARTBEAT_S
from logd.storage.disk import File
from tests.support.byte_sweep import leave_out_syncs
from tests.support.long_run import LONG
from tests.unit.following import Expected, Peer, Scene, reading_from

EXAMPLES = 10_000 if LONG else 200
SEQUENCES = 5_000 if LONG else 150  # per part, longer ones than hypothesis prefers
PARTS = 4
SEED = random.randrange(1 << 32) if LONG else 0
Step = tuple[str, int, int, int]  # what, which peer, how much, turns of the loop after it

PUSHING = ["push", "push", "push", "several", "large", "many"]
FOLLOWING = ["follow next", "follow next", "follow first", "follow middle", "follow limited"]
READING = ["receive", "receive", "drain", "receive all"]
COMMANDS = ["ping", "own push", "read", "wait", "wait and follow", "stats", "split", "follow far"]
ENDING = ["disconnect", "reset", "half-close"]
RARE = [
    "heartbeat",
    "cold",
    "cold",
    "short sends",
    "short sends",
    "retention",
    "revoke",
    "allow",
    "remove token",
    "sweep",
]
LAST = ["damage", "stop", "close topic"]


def steps(names: list[str]) -> st.SearchStrategy[Step]:
    return st.tuples(
        st.sampled_from(names), st.integers(0, 5), st.integers(0, 30), st.integers(0, 3)
    )


KINDS = [
    PUSHING, PUSHING, FOLLOWING, READING, COMMANDS, RARE, ENDING + LAST + RARE,
    ["open direct", "open buffered"],
]  # fmt: skip
STEPS = st.lists(st.one_of(*map(steps, KINDS)), min_size=5, max_size=60)


class Story:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._steps: dict[str, Callable[[Peer, int], object]] = {
            "push": lambda peer, n: self._push(1, 10 * n),
            "several": lambda peer, n: self._push(1 + n, 10),
            "large": lambda peer, n: self._push(1, 20_000 + 10_000 * n),
            "many": lambda peer, n: self._push(n, 3000),
            "follow next": lambda peer, n: peer.follow(b"next"),
            "follow first": lambda peer, n: peer.follow(b"first"),
            "follow middle": lambda peer, n: peer.follow(b"%d" % self._middle(n)),
            "follow limited": lambda peer, n: peer.follow(b"first", 1 + 200 * n),
            "follow far": lambda peer, n: peer.follow(b"%d" % (scene.topic.readable.next + 1 + n)),
            "receive": lambda peer, n: peer.receive(1 + n * n),
            "receive all": lambda peer, n: peer.receive(1 << 20),
            "drain": lambda peer, n: peer.drain(),
            "ping": lambda peer, n: self._ping(peer, 1 + n % 3),
            "own push": lambda peer, n: peer.push(scene.next_message(n)),
            "read": lambda peer, n: peer.read(self._middle(n)),
            "wait": lambda peer, n: peer.read(None, 1000 * n),
            "wait and follow": lambda peer, n: self._wait_and_follow(peer),
            "stats": lambda peer, n: peer.send(b"STATS app\r\n", Expected(b"STATS")),
            "split": self._split,
            "disconnect": lambda peer, n: peer.disconnect(),
            "reset": lambda peer, n: peer.disconnect(reset=True),
            "half-close": lambda peer, n: peer.half_close(),
            "heartbeat": lambda peer, n: self._heartbeat(),
            "cold": lambda peer, n: setattr(scene, "cold_reads", n % 8),
            "short sends": lambda peer, n: setattr(scene, "short_sends", n),
            "retention": lambda peer, n: scene.topic.check_retention(),
            "revoke": lambda peer, n: self._revoke(peer),
            "allow": lambda peer, n: self._allow(peer),
            "remove token": self._remove_token,
            "sweep": lambda peer, n: self._sweep(n),
            "damage": lambda peer, n: self._damage(n),
            "stop": lambda peer, n: scene.close(),
            "close topic": lambda peer, n: scene.close(stop_connections=False),
        }  # fmt: skip

    def step(self, step: Step) -> None:
        name, which, size, turns = step
        scene = self.scene
        if name.startswith("open"):
            if len(scene.peers) < 8 and not scene.is_closing:
                Peer(scene, is_direct=name == "open direct")
        else:
            self._steps[name](scene.peers[which % len(scene.peers)], size)
        for _ in range(turns):
            scene.loop.turn()
            scene.check()

    def end(self) -> None:
        """Everybody reads now, and nothing else happens."""
        scene = self.scene
        scene.cold_reads = scene.short_sends = 0
        for _ in range(2):
            for peer in scene.peers:
                peer.drain()
        while reads := 0 if scene.is_closing else sum(peer.reads for peer in scene.peers):
            scene.pass_time(61)  # the READs that wait are over
            for peer in scene.peers:
                peer.drain()
            assert sum(peer.reads for peer in scene.peers) < reads, "a READ without a reply"
        for peer in scene.peers:
            peer.check_complete()
        scene.end()

    def _push(self, batches: int, size: int) -> None:
        scene = self.scene
        scene.push(*([scene.next_message(size)] for _ in range(batches)))

    def _middle(self, n: int) -> int:
        readable = self.scene.topic.readable
        return readable.first + n * (readable.next - readable.first) // 30

    def _ping(self, peer: Peer, count: int) -> None:
        peer.send(b"PING\r\n" * count, *[Expected(b"PING")] * count)

    def _wait_and_follow(self, peer: Peer) -> None:
        """The FOLLOW starts while the readers of the topic are woken."""
        peer.read(None, 60_000)
        peer.follow(b"next")

    def _sweep(self, seconds: int) -> None:
        self.scene.pass_time(seconds)
        self.scene.connections.sweep()

    def _split(self, peer: Peer, n: int) -> None:
        """A command in two pieces."""
        data = b"PING\r\n"
        peer.send(data[: 1 + n % 5])
        for _ in range(n % 3):
            self.scene.loop.turn()
        peer.send(data[1 + n % 5 :], Expected(b"PING"))

    def _heartbeat(self) -> None:
        scene = self.scene
        scene.settle()
        ready = [
            (peer, peer.heartbeats)
            for peer in scene.peers
            if peer.is_streaming and not peer.is_cut and peer.follower and peer.follower.group
        ]
        for peer, _ in ready:
            peer.drain()
        if not scene.is_closing:
            streams = [peer for peer in scene.peers if peer.is_streaming]
            unwritten = {peer: size for peer in streams if (size := peer.unwritten_bytes())}
            scene.pass_time(HEARTBEAT_S)
            scene.settle()
            for peer, size in unwritten.items():
                assert peer.unwritten_bytes() <= size, "a heartbeat after unsent bytes"
            for peer, before in ready:
                peer.drain()
                assert peer.is_cut or peer.heartbeats > before, "no heartbeat"

    def _revoke(self, peer: Peer) -> None:
        peer.may_read, peer.was_revoked = False, True
        if self.scene.service.access is not None:
            self.scene.reload_access()

    def _allow(self, peer: Peer) -> None:
        peer.may_read = True
        if self.scene.service.access is not None:
            self.scene.reload_access()

    def _remove_token(self, peer: Peer, n: int) -> None:
        """The connection is closed."""
        if self.scene.service.access is not None and n < 10:
            peer.has_token = False
            self.scene.reload_access()

    def _damage(self, n: int) -> None:
        """A file is lost; from now on the topic is read-only."""
        partitions = self.scene.topic.readable.partitions.values()
        if n < 10 and len(partitions) > 1:
            self.scene.topic.lose_files(partitions[n % (len(partitions) - 1)])


def play(
    sequence: list[Step], *, fsync: str = "never", tokens: bool = False, max_partitions: int = 0
) -> None:
    scenes: list[Scene] = []
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch)
        patch.setattr(File, "read", reading_from(lambda: scenes[0] if scenes else None))
        scene = Scene(
            Path(directory),
            fsync=fsync,
            partition_bytes=30_000,
            max_partitions=max_partitions,
            tokens=tokens,
        )
        patch.setattr(follow, "deliver", scene.deliver)
        scenes.append(scene)
        with scene:
            story = Story(scene)
            for is_direct in (True, False, True):
                Peer(scene, is_direct=is_direct)
            try:
                for step in sequence:
                    story.step(step)
                story.end()
            except AssertionError as error:
                error.add_note(f"{sequence} fsync={fsync} {tokens=} {max_partitions=}")
                raise


@settings(max_examples=EXAMPLES)
@given(STEPS, st.sampled_from(["never", "always"]), st.booleans(), st.sampled_from([0, 2]))
@example(
    [("wait and follow", 0, 0, 3), ("follow next", 1, 0, 3), ("push", 0, 0, 3)], "never", False, 0
)
@example(
    [
        ("wait and follow", 2, 0, 0), ("large", 0, 10, 3), ("receive all", 2, 0, 2),
        ("push", 0, 8, 3),
    ],
    "always", False, 0,
)  # fmt: skip
def test_streams_are_complete_and_in_order(
    sequence: list[Step], fsync: str, tokens: bool, max_partitions: int
) -> None:
    play(sequence, fsync=fsync, tokens=tokens, max_partitions=max_partitions)


@pytest.mark.parametrize("part", range(PARTS))
def test_long_sequences(part: int) -> None:
    """The same steps without hypothesis, which draws mostly short lists of them."""
    print(f"seed {SEED}")
    for number in range(SEQUENCES):
        drawn = random.Random(f"{SEED} {part} {number}")
        sequence: list[Step] = []
        for _ in range(drawn.randrange(1, 60)):
            which, size, turns = (drawn.randrange(n) for n in (6, 31, 4))
            sequence.append((drawn.choice(drawn.choice(KINDS)), which, size, turns))
        play(
            sequence,
            fsync=drawn.choice(["never", "always"]),
            tokens=drawn.random() < 0.5,
            max_partitions=drawn.choice([0, 2]),
        )


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 1000])
def test_a_follower_that_reads_is_not_idle(tmp_path: Path, is_direct: bool, max_bytes: int) -> None:
    """Not even if it does not reach the end of the topic for a long time."""
    with Scene(tmp_path, fsync="never") as scene:
        for _ in range(100):
            scene.push(*([scene.next_message(500)] for _ in range(50)))
        scene.settle()
        reading, stalled = (Peer(scene, is_direct=is_direct) for _ in range(2))
        for peer in (reading, stalled):
            peer.follow(b"first", max_bytes)
        for _ in range(int(2 * scene.config.idle_timeout_s)):
            scene.pass_time(1)
            scene.connections.sweep()
            while reading.receive(1 << 20):
                pass
        assert not reading.is_cut
        assert reading.follower is not None
        assert reading.follower.group is None, "it has reached the end"
        while stalled.receive(1 << 20):
            pass
        assert stalled.is_cut
        scene.end()


def test_a_revoked_token_ends_a_stream_that_is_not_read(tmp_path: Path) -> None:
    """The transport keeps the connection open until the client has read what was sent before."""
    with Scene(tmp_path, tokens=True, fsync="never") as scene:
        peer = Peer(scene, is_direct=False)
        peer.follow(b"next")
        scene.settle()
        while not peer.unwritten_bytes():
            scene.push([scene.next_message(100)])
            scene.settle()
        unwritten = peer.unwritten_bytes()
        peer.has_token = False
        scene.reload_access()
        for _ in range(10):
            scene.push([scene.next_message(100)])
            scene.settle()
        assert peer.unwritten_bytes() <= unwritten
        scene.end()


@pytest.mark.parametrize("is_direct", [True, False])
def test_heartbeats_of_a_stalled_follower_do_not_accumulate(
    tmp_path: Path, is_direct: bool
) -> None:
    with Scene(tmp_path, fsync="never") as scene:
        peer = Peer(scene, is_direct=is_direct)
        peer.follow(b"next")
        scene.settle()
        for _ in range(1000):  # fill the socket with heartbeats, and a little more
            scene.pass_time(HEARTBEAT_S)
        scene.settle()
        unwritten = peer.unwritten_bytes()
        assert 0 < unwritten < 100
        scene.push([scene.next_message(100)])
        scene.settle()
        peer.drain()
        peer.check_complete()
        scene.end()
