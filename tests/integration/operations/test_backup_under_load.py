"""Backups of a daemon at work: full load, retention deleting files, kills at random."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from logd import Client, Writer
from tests.integration.operations.copies import assert_messages, assert_sound, message
from tests.integration.operations.manager import environment
from tests.support.daemon import HANG_S, ROOT, Daemon, wait_until
from tests.support.log_cli import LOG_CLI, log_cli
from tests.support.long_run import LONG

KILLS = 200 if LONG else 12
TOPICS = ("app", "web", "audit")


class Load(threading.Thread):
    """Writes messages that say their own offset, as fast as it can; knows what was acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__()
        self.address, self.topic = address, topic
        self.acknowledged = 0  # of the messages from the first on
        self.stop = threading.Event()

    def run(self) -> None:
        sent = 0
        with Writer(self.address, self.topic) as writer:
            while not self.stop.is_set():
                for offset in range(sent, sent + 500):
                    writer.write(message(self.topic, offset))
                writer.flush()
                sent += 500
                self.acknowledged = sent


def backup_command(source: Path, copy: Path) -> list[str]:
    return [*LOG_CLI, "backup", "-q", "--data-dir", str(source), "--to", str(copy)]


@pytest.mark.slow
def test_backups_killed_at_random_under_full_load_with_retention_at_work(tmp_path: Path) -> None:
    copy, scratch = tmp_path / "copy", tmp_path / "scratch"
    flags = ("--partition-bytes", "400KB", "--max-partitions", "5")
    chance = random.Random(7)
    finished = 0
    with Daemon(tmp_path / "data", flags) as source:
        loads = [Load(source.address, topic) for topic in TOPICS]
        for load in loads:
            load.start()
        try:
            for _ in range(KILLS):
                finished += kill_at_random(backup_command(source.data_dir, copy), chance)
                assert_sound(copy, scratch)
            wait_for_retention(source)
            acknowledged = {load.topic: load.acknowledged for load in loads}
            code, out, err = log_cli(
                "", "backup", "--data-dir", str(source.data_dir), "--to", str(copy)
            )
            assert (code, err) == (0, ""), out
            with Client(source.address) as client:
                firsts = {info.topic: info.first for info in client.topics()}
        finally:
            for load in loads:
                load.stop.set()
            for load in loads:
                load.join(HANG_S)
    assert finished < KILLS, "no run was killed half way"
    ranges = assert_sound(copy, scratch)
    assert log_cli("", "check", "--data-dir", str(copy))[0] == 0
    for topic, (first, next_) in ranges.items():
        assert next_ >= acknowledged[topic], "acknowledged before the backup began"
        assert 0 < first <= firsts[topic], "retention was at work, and took no more than there"
    assert set(ranges) == set(TOPICS)
    with Daemon(copy, flags[:2]) as restored:
        for topic, (first, next_) in ranges.items():
            assert_messages(restored, topic, first, next_)
            with Client(restored.address) as client:
                assert client.push(topic, [b"and on"]).offset == next_


def wait_for_retention(source: Daemon) -> None:
    """Wait until a part of each topic has expired."""
    with Client(source.address) as client:
        wait_until(
            lambda: {info.topic for info in client.topics() if info.first > 0} == set(TOPICS),
            timeout_s=2 * HANG_S,
        )


def kill_at_random(command: list[str], chance: random.Random) -> bool:
    """Run a backup for a while. Did it come to its end before that?"""
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL)
    try:
        assert process.wait(chance.uniform(0.15, 0.8)) == 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)
        return False
    return True
