"""`log-cli forward` as people use it: signals, exit codes, a daemon that goes away."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, lasting_address, running
from tests.support.forwarding_process import (
    Program,
    Shipper,
    arrived,
    assert_once_and_in_order,
    wait_for,
)
from tests.support.long_run import LONG


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "app.log"


def test_once(daemon: Daemon, tmp_path: Path, path: Path) -> None:
    path.write_bytes(b"one\ntwo\n")
    with Shipper(tmp_path, daemon.address, str(path)) as shipper:
        assert shipper.run_once() == 0
        assert arrived(daemon) == [b"one", b"two"]
        with path.open("ab") as file:
            file.write(b"three\n")
        assert shipper.run_once() == 0
    assert arrived(daemon) == [b"one", b"two", b"three"]


def test_follow_report_and_stop(daemon: Daemon, tmp_path: Path, path: Path) -> None:
    words = ("--parse", "json", "--field", "site=berlin", "--add-path", f"{path.parent}/*.log")
    with Shipper(tmp_path, daemon.address, *words) as shipper:
        shipper.first_start()
        path.write_bytes(b'{"a": 1}\n')
        wait_for(daemon, 1)
        shipper.signal(signal.SIGUSR1)
        shipper.until_said("1 file, 1 line, ")
        assert shipper.stop() == 0
    assert [json.loads(value) for value in arrived(daemon)] == [
        {"a": 1, "path": str(path), "site": "berlin", "line": '{"a": 1}'}
    ]


def test_two_forwarders_on_one_state_directory(daemon: Daemon, tmp_path: Path, path: Path) -> None:
    with Shipper(tmp_path, daemon.address, str(path)) as one:
        one.first_start()
        with Shipper(tmp_path, daemon.address, str(path)) as two:
            assert two.run_once() == 1
        assert "is in use by another forwarder; stop it" in one.log


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--parse", "xml"], "invalid value 'xml' for --parse"),
        (["--field", "novalue"], "invalid value 'novalue' for --field"),
        (["--field", "line=x"], "--field cannot set line"),
        (["--host", "a b"], "'a b' is not an address"),
        (["--topic", "a/b"], "topic"),
    ],
)
def test_options_that_make_no_sense(
    tmp_path: Path, path: Path, words: list[str], sentence: str
) -> None:
    with Shipper(tmp_path, "127.0.0.1:1", str(path), *words) as shipper:
        assert shipper.run_once() in (1, 2)
        assert sentence in shipper.log
        assert not (tmp_path / "state").exists()


def test_the_daemon_is_away(tmp_path: Path, path: Path) -> None:
    """It reads on, and what it spooled outlives it; nothing is there twice when all is back."""
    with running(tmp_path, "--host", lasting_address()) as daemon:
        address = daemon.address
        daemon.stop()
        with Shipper(tmp_path, address, str(path)) as shipper:
            path.write_bytes(b"one\ntwo\n")
            shipper.first_start()
            while "2 lines" not in shipper.log:
                shipper.signal(signal.SIGUSR1)
                assert shipper.lives_for(0.05)
            assert shipper.stop() == 0
            assert "1 batch," in shipper.log
            path.unlink()
            daemon.start()
            assert shipper.run_once() == 0
        assert arrived(daemon) == [b"one", b"two"]


@pytest.mark.slow
def test_the_daemon_is_killed_and_the_spool_gets_full(tmp_path: Path, path: Path) -> None:
    with running(tmp_path, "--host", lasting_address()) as daemon:
        words = (str(path), "--spool-bytes", "100000")
        with (
            Shipper(tmp_path, daemon.address, *words) as shipper,
            Program(path, pause_s=0.001) as program,
        ):
            shipper.first_start()
            for n in range(3):
                wait_for(daemon, program.count)
                daemon.kill()
                shipper.until_said("the spool is full", n + 1)
                daemon.start()
                shipper.until_said("the spool has free space", n + 1)
        with shipper:
            assert shipper.run_once() == 0
        assert_once_and_in_order(arrived(daemon), program.count)


@pytest.mark.slow
def test_killed_at_random(daemon: Daemon, tmp_path: Path, path: Path) -> None:
    with Shipper(tmp_path, daemon.address, str(path)) as shipper, Program(path) as program:
        for _ in range(500 if LONG else 12):
            shipper.start()
            assert shipper.lives_for(random.uniform(0.2, 0.9)), shipper.log
            shipper.kill()
    with shipper:
        assert shipper.run_once() == 0
    assert_once_and_in_order(arrived(daemon), program.count)
