"""Any order of writing, rotating, reading, being killed: each line once, in order.

The model is the list of lines that were written. Steps of the world are whole: no line is lost
between a copy and a truncation, so everything has to arrive.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logd.forward import forwarder, path_reader, rotated_files
from logd.forward.file_content import PlainFile
from tests.support.byte_sweep import leave_out_syncs
from tests.support.long_run import LONG
from tests.unit.forwarding import Killed, Life, Outbox, World, options

EXAMPLES = 5_000 if LONG else 300
WRITING = ["line", "line", "long", "half"]
COPYING = ["copytruncate", "half a copytruncate", "the other half", "copy"]
ROTATING = ["rotate", "compress", "compress2", *COPYING]
WORLD = WRITING + ROTATING
WRITE, ROTATE = st.sampled_from(WRITING), st.sampled_from(ROTATING)
FORWARD = st.sampled_from(["turn", "turn", "quick", "ack", "full", "room", "fast", "slow"])
KILL = st.sampled_from(["kill", "kill before", "kill behind"])
STEPS = st.lists(st.one_of(WRITE, WRITE, ROTATE, FORWARD, FORWARD, KILL), max_size=40)
# What happens during one turn: after so many more looks at a file or the directory, this.
MEANWHILE = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(WORLD)), min_size=1, max_size=6)
LOOKS = {
    PlainFile: ["size", "stamp", "read"],
    rotated_files: [
        "list_generations",
        "is_rotated_name",
        "open_content",
    ],  # the second: between a name and its stat
    path_reader: ["identity_of"],
    forwarder: ["list_generations"],
}
Meanwhile = list[tuple[int, str]]
SWEEPS: dict[str, Callable[[int, int], list[str | Meanwhile]]] = {
    "what was found is truncated": lambda moment, later: [
        "line", [(moment, "copytruncate"), (later, "line")]],
    "what was empty is filled, truncated and filled again": lambda moment, later: [
        "line", "turn", "copytruncate",
        [(moment, "line"), (later, "copytruncate"), (0, "line"), (0, "line")]],
    "what an old file is compared with is truncated": lambda moment, later: [
        "line", "rotate", [(moment, "line"), (0, "line"), (later, "copytruncate")]],
    "what was empty is filled and truncated": lambda moment, later: [
        "line", "turn", "rotate", [(moment, "line"), (later, "copytruncate")],
        "turn", "line", "compress"],
    "what a copy is compared with is truncated and filled again": lambda moment, later: [
        "line", "copy", [(moment, "line"), (1, "copytruncate"), (later, "line")]],
    "what is looked at is truncated and filled, and both again": lambda moment, later: [
        "line", "half a copytruncate",
        [(moment, "the other half"), (1, "line"), (later, "copytruncate"), (0, "line")]],
}  # fmt: skip
REUSED_INODE: list[str | Meanwhile] = [
    "line", "rotate", "kill before",
    [(8, "rotate"), (0, "line"), (0, "rotate"), (0, "compress2")], [(12, "compress")],
]  # fmt: skip


class Story:
    def __init__(self, directory: Path) -> None:
        self.world, self.outbox = World(directory / "logs"), Outbox()
        self._options = options(self.world.path)
        self._state = directory / "state"
        self.life = Life(self._state, self.outbox, self._options)
        self.life.turn()  # the forwarder is there first: else what was rotated before is not its

    def step(self, name: str) -> None:
        world = self.world
        if name in WORLD:
            world.end_copytruncate()
        steps: dict[str, Callable[[], object]] = {
            "line": world.line,
            "long": lambda: world.line(pad=700),
            "half": world.half_a_line,
            "rotate": world.rotate,
            "copytruncate": world.copytruncate,
            "half a copytruncate": world.begin_copytruncate,
            "the other half": lambda: None,  # each step does it first
            "compress": world.compress,
            "compress2": lambda: world.compress(2),
            "copy": world.copy_only,
            "ack": self.outbox.acknowledge,
            "turn": self._turn,
            "quick": lambda: self._turn(0.01),
            "full": lambda: setattr(self.outbox, "full", True),
            "room": lambda: setattr(self.outbox, "full", False),
            "fast": lambda: setattr(self.outbox, "is_quick", True),
            "slow": lambda: setattr(self.outbox, "is_quick", False),
            "kill": self._restart,
            "kill before": lambda: setattr(self.outbox, "kill_before", True),
            "kill behind": lambda: setattr(self.outbox, "kill_behind", True),
        }
        steps[name]()

    def _turn(self, later_s: float = 2.0) -> None:
        try:
            self.life.turn(later_s)
        except Killed:
            self._restart()

    def turn_while(self, happens: Meanwhile) -> None:
        """A turn, and a world that goes on during it."""
        left = deque(happens)
        looks = [0]

        def watched(look: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                looks[0] += 1
                while left and looks[0] > left[0][0]:
                    _, name = left.popleft()
                    looks[0] = 0
                    self.step(name)
                return look(*args)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for place, names in LOOKS.items():
                for name in names:
                    patch.setattr(place, name, watched(getattr(place, name)))
            self._turn()
        for _, name in left:
            self.step(name)

    def _restart(self) -> None:
        self.life.kill()
        self.life = Life(self._state, self.outbox, self._options)

    def end(self) -> None:
        """Whatever was asked for is over now, and there is time."""
        self.outbox.full = False
        self.world.end_copytruncate()
        if self.world._pending:
            self.world.line()
        self._restart()
        self.life.settle()
        self.life.kill()


@settings(
    max_examples=EXAMPLES,
)
@given(STEPS)
@example(["line", "turn", "line", "copytruncate", "kill"])
@example(["line", "turn", "line", "rotate", "compress", "line", "rotate", "compress", "kill"])
@example(["line", "turn", "copy", "line", "turn", "kill", "turn", "copytruncate", "ack", "kill"])
@example(["long", "full", "turn", "copytruncate", "line", "turn", "copytruncate", "kill", "room"])
@example(["line", "copy", "turn", "rotate", "half", "turn", "copytruncate"])
@example(["fast", "line", "kill behind", "turn"])
@example(["line", "kill behind", "turn", "rotate", "compress", "line"])
def test_each_line_arrives_once_and_in_order(steps: list[str | Meanwhile]) -> None:
    assert_each_line_arrives_once(steps)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.one_of(WRITE, ROTATE, FORWARD, KILL, MEANWHILE, MEANWHILE), max_size=20))
@example(REUSED_INODE)
def test_the_world_does_not_wait_while_the_forwarder_looks_and_reads(
    steps: list[str | Meanwhile],
) -> None:
    assert_each_line_arrives_once(steps)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_each_moment_of_a_turn(sweep: str) -> None:
    """One thing happens at each possible moment, and the next one soon, or later."""
    for moment in range(40):
        for later in range(0, 12, 1 if LONG else 2):
            assert_each_line_arrives_once(SWEEPS[sweep](moment, later))


def assert_each_line_arrives_once(steps: list[str | Meanwhile]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        leave_out_syncs(patch)
        story = Story(Path(directory))
        for step in steps:
            if isinstance(step, str):
                story.step(step)
            else:
                story.turn_while(step)
        story.end()
        assert story.outbox.delivered == story.world.written, steps


@pytest.mark.parametrize("how", ["rotate", "copytruncate"])
def test_a_line_that_a_rotation_splits_is_two_messages(tmp_path: Path, how: str) -> None:
    story = Story(tmp_path)
    story.world.append(b"first h")
    story.life.turn()
    story.world._pending = b""
    story.step(how)
    story.world.append(b"alf\n")
    story.life.settle()
    story.life.kill()
    assert story.outbox.delivered == [b"first h", b"alf"]
