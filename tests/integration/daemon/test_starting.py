"""Starts that are refused: each with one clear line, and nothing changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import HANG_S, ROOT, dial, push, running


def refused(*flags: str) -> str:
    """What a daemon that cannot start says."""
    command = [sys.executable, "-m", "logd", "--host", "127.0.0.1:0", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode != 0
    assert "ready tcp=" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_second_daemon_on_the_same_directory(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert f"{server.data_dir} is in use by another logd" in refused(
            "--data-dir", str(server.data_dir)
        )
        assert server.stop() == 0
        server.start()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        said = refused("--data-dir", str(tmp_path / "other"), "--host", server.address)
        assert "in use" in said


def test_help_has_defaults_as_people_write_them() -> None:
    command = [sys.executable, "-m", "logd"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    text = " ".join(done.stdout.split())
    for default in ("256MiB", "1s", "false", "interval", "127.0.0.1:1774"):
        assert f"[default: ({default})]" in text
    assert "()" not in text
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "logd 0.1.0\n"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--fsync", "sometimes"),
        ("--partition-bytes", "0"),
        ("--max-topics", "many"),
        ("--host", "nowhere"),
        ("--config", "nothing.toml"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, flag: str, value: str) -> None:
    said = refused("--data-dir", str(tmp_path / "data"), flag, value)
    assert flag.removeprefix("--config") in said
    assert value in said
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    assert str(tmp_path / "data") in refused("--data-dir", str(tmp_path / "data"))
    assert (tmp_path / "data").read_text() == "mine"


@pytest.mark.parametrize("name", [b"\xff", b"lost+found", b"a b", b"\x1b[31m"])
def test_a_directory_that_is_no_topic(tmp_path: Path, name: bytes) -> None:
    """Whatever its name is: somebody put it there, and has to say what it is."""
    topics = tmp_path / "data" / "topics"
    topics.mkdir(parents=True)
    os.mkdir(os.fsencode(topics) + b"/" + name)
    said = refused("--data-dir", str(tmp_path / "data"))
    assert "is not a topic; move it to another directory" in said
    assert "\x1b" not in said


async def test_settings_come_from_the_file_and_a_flag_wins(tmp_path: Path) -> None:
    (tmp_path / "logd.toml").write_text("max-topics = 1\nfsync = 'never'\n")
    server = running(tmp_path, config=tmp_path / "logd.toml", fsync="always")
    async with server, dial(server) as line:
        settings = await line.values(b"CONFIG")
        assert (settings["max-topics"], settings["fsync"]) == ("1", "always")
        assert (await line.ask(push("a", b"x\n"))).head == b"OK 0 1"
        assert await line.refused(push("b", b"x\n")) == "topic-limit"


async def test_a_topic_that_was_never_finished_is_swept_away(tmp_path: Path) -> None:
    server = running(tmp_path)
    hidden = server.data_dir / "topics" / ".new-app"
    hidden.mkdir(parents=True)
    (hidden / "meta.json").write_text("half")
    async with server, dial(server) as line:
        assert not hidden.exists()
        assert (await line.ask(b"TOPICS\r\n")).body == b""
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
