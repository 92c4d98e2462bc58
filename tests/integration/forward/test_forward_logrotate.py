"""The real logrotate, forced again and again under a program that never stops writing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.forwarding_process import (
    LINE,
    Logrotate,
    Program,
    Shipper,
    arrived,
    assert_once_and_in_order,
    wait_for,
    why_no_logrotate,
)
from tests.support.long_run import LONG

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_logrotate()), reason=why_no_logrotate()),
]

ROTATIONS = 200 if LONG else 10
KILLS = 200 if LONG else 5
WAYS = {
    "create": (),
    "compress": ("compress",),
    "delaycompress": ("compress", "delaycompress"),
    "copytruncate": ("copytruncate",),
    "copytruncate and compress": ("copytruncate", "compress"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "app.log"


def rotate(logrotate: Logrotate, program: Program, way: str) -> None:
    """Without a loss: what is written between a copy and the truncation would be in no file."""
    if way.startswith("copytruncate"):
        with program.paused():
            logrotate.force()
    else:
        logrotate.force()


@pytest.mark.parametrize("way", WAYS)
def test_rotations_under_a_program_that_writes(
    daemon: Daemon, tmp_path: Path, path: Path, way: str
) -> None:
    logrotate = Logrotate(tmp_path, path, *WAYS[way])
    shipper = Shipper(tmp_path, daemon.address, str(path)).first_start()
    with shipper, Program(path) as program:
        for _ in range(ROTATIONS):
            rotate(logrotate, program, way)
            wait_for(daemon, random.randint(0, program.count))  # sometimes far behind
    with shipper:
        assert shipper.run_once() == 0
    shipper.tell(path)
    assert_once_and_in_order(arrived(daemon), program.count)


@pytest.mark.parametrize("way", WAYS)
def test_kills_and_rotations(daemon: Daemon, tmp_path: Path, path: Path, way: str) -> None:
    """While it is dead there may be several rotations, and what it read may be compressed."""
    logrotate = Logrotate(tmp_path, path, *WAYS[way])
    shipper = Shipper(tmp_path, daemon.address, str(path)).first_start()
    shipper.kill()
    with shipper, Program(path) as program:
        for _ in range(KILLS):
            shipper.start()
            assert shipper.lives_for(random.uniform(0.1, 1.2)), shipper.log
            if random.random() < 0.5:
                rotate(logrotate, program, way)
            shipper.kill()
            for _ in range(random.randrange(3)):
                rotate(logrotate, program, way)
    with shipper:
        assert shipper.run_once() == 0
    shipper.tell(path)
    assert_once_and_in_order(arrived(daemon), program.count)


def test_copytruncate_under_a_program_that_writes(
    daemon: Daemon, tmp_path: Path, path: Path
) -> None:
    """What logrotate itself loses is lost: lines that came while it copied, and no others."""
    logrotate = Logrotate(tmp_path, path, "copytruncate")
    moments = []
    shipper = Shipper(tmp_path, daemon.address, str(path)).first_start()
    with shipper, Program(path) as program:
        for _ in range(ROTATIONS):
            before = program.count
            logrotate.force()
            moments.append(range(before - 5, program.count + 5))
    with shipper:
        assert shipper.run_once() == 0
    got = arrived(daemon)
    numbers = [int(match[1]) for match in map(LINE.fullmatch, got) if match]
    assert len(got) - len(numbers) <= 2 * ROTATIONS  # lines that were cut in two
    assert numbers == sorted({*numbers})
    missing = sorted({*range(program.count)} - {*numbers})
    assert [n for n in missing if not any(n in moment for moment in moments)] == []
