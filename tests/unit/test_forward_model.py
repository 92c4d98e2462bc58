"""Any order of writing, rotating, reading, being killed: each line once, in order.

The model is the list of lines that were written. Steps of the world are whole: no line is lost
between a copy and a truncation, so everything has to arrive.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from forwarding import Killed, Life, Outbox, World, options
from hypothesis import example, given, settings
from hypothesis import strategies as st

EXAMPLES = 5_000 if os.environ.get("LOGD_LONG") == "1" else 300
WRITE = st.sampled_from(["line", "line", "long", "half"])
ROTATE = st.sampled_from(["rotate", "copytruncate", "compress", "compress2", "copy"])
FORWARD = st.sampled_from(["turn", "turn", "quick", "ack", "full", "room", "fast", "slow"])
KILL = st.sampled_from(["kill", "kill before", "kill behind"])
STEPS = st.lists(st.one_of(WRITE, WRITE, ROTATE, FORWARD, FORWARD, KILL), max_size=40)


class Story:
    def __init__(self, directory: Path) -> None:
        self.world, self.outbox = World(directory / "logs"), Outbox()
        self._options = options(self.world.path)
        self._state = directory / "state"
        self.life = Life(self._state, self.outbox, self._options)
        self.life.turn()  # the forwarder is there first: else what was rotated before is not its

    def step(self, name: str) -> None:
        world = self.world
        steps: dict[str, Callable[[], object]] = {
            "line": world.line,
            "long": lambda: world.line(pad=700),
            "half": world.half_a_line,
            "rotate": world.rotate,
            "copytruncate": world.copytruncate,
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

    def _restart(self) -> None:
        self.life.kill()
        self.life = Life(self._state, self.outbox, self._options)

    def end(self) -> None:
        """Whatever was asked for is over now, and there is time."""
        self.outbox.full = False
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
def test_each_line_arrives_once_and_in_order(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        story = Story(Path(directory))
        for step in steps:
            story.step(step)
        story.end()
        assert story.outbox.delivered == story.world.written


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
