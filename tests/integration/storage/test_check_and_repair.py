"""`log-cli check` and `log-cli repair` as people and scripts run them: words, JSON, exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logd import Reader
from logd.wire.read_state import Gap, Rewind
from tests.integration.storage.corruptions import (
    BROKEN,
    Corruption,
    cut,
    flip_body,
    flip_header,
    remove,
)
from tests.integration.storage.data_dirs import OTHER, data_dir, log_cli, unchanged
from tests.integration.storage.small_log import State, read_files
from tests.support.daemon import HANG_S, ROOT, dial, messages, running
from tests.support.long_run import LONG
from tests.support.topic_loop import Loop, batch_of, close, create, push

BETWEEN = next(c for c in BROKEN if c.name == "a header between")
SOUND, USAGE, LOSS = 0, 1, 3


def json_lines(text: str) -> dict[str, dict[str, Any]]:
    return {report["topic"]: report for report in map(json.loads, text.splitlines())}


def size_of(state: State) -> int:
    return sum(len(part.data) for part in state.parts)


def size_in(topic: Path) -> int:
    return sum(path.stat().st_size for path in topic.glob("*.log"))


# -- what it says, and with which code ----------------------------------------------------------


def test_sound_topics(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    other = next((data / "topics" / "other").glob("*.log")).stat().st_size
    for command in ("check", "repair"):
        with unchanged(data):
            ran = log_cli(command, "--data-dir", data)
        assert ran == (
            SOUND,
            f"app: ok, 76 messages, {size_of(clean)} bytes\nother: ok, 2 messages, {other} bytes\n",
            "",
        )
    report = json_lines(log_cli("check", "--data-dir", data, "-o", "json").out)["app"]
    assert report == {
        "topic": "app", "sound": True, "messages": 76, "bytes": size_of(clean), "torn_tail": None,
        "gaps": [], "damages": [], "accepted": [], "quarantine": [],
    }  # fmt: skip


def test_a_torn_tail_is_found_by_check_and_cut_by_repair(tmp_path: Path, killed: State) -> None:
    data = data_dir(tmp_path, killed)
    path = data / "topics" / "app" / killed.active.name
    whole, torn = killed.active.data[: killed.active.batches[-1].position], b"BATCH 75 1 7 00"
    path.write_bytes(whole + torn)
    kept = size_of(killed) - len(killed.active.data) + len(whole)
    copy = f"{58:020d}-{len(whole)}-{len(whole) + len(torn)}"

    with unchanged(data):
        checked = log_cli("check", "--data-dir", data)
        assert checked.code == LOSS
        assert f"app: found a torn tail of 15 bytes after 75 messages, {kept} bytes" in checked.out
        assert "other: ok" in checked.out
        report = json_lines(log_cli("check", "--data-dir", data, "-o", "json").out)["app"]
        assert not report["sound"]
        assert report["torn_tail"]["bytes"] == 15
        assert report["torn_tail"]["cut"] is False
        tried = log_cli("repair", "--data-dir", data, "--dry-run")
        assert tried.code == SOUND
        assert "app: found a torn tail of 15 bytes" in tried.out
        assert "no file was changed" in tried.err
        assert log_cli("repair", "--data-dir", data, "-n", "-q").err == ""

    repaired = log_cli("repair", "--data-dir", data)
    assert repaired.code == SOUND
    assert "app: removed a torn tail of 15 bytes after 75 messages" in repaired.out
    assert f"app: saved a copy in quarantine/{copy}" in repaired.out
    assert path.read_bytes() == whole
    assert (path.parent / "quarantine" / copy).read_bytes() == torn
    assert log_cli("check", "--data-dir", data).code == SOUND


def test_a_repaired_tail_as_json(tmp_path: Path, killed: State) -> None:
    data = data_dir(tmp_path, killed)
    path = data / "topics" / "app" / killed.active.name
    path.write_bytes(killed.active.data + b"torn")
    ran = log_cli("repair", "--data-dir", data, "-o", "json")
    report = json_lines(ran.out)["app"]
    assert ran.code == SOUND
    assert report["sound"]
    assert report["torn_tail"]["cut"] is True
    size = len(killed.active.data)
    assert report["quarantine"] == [f"{58:020d}-{size}-{size + 4}"]


def test_damage_is_named_left_and_only_replaced_when_its_loss_is_accepted(
    tmp_path: Path, clean: State
) -> None:
    data = data_dir(tmp_path, clean)
    BETWEEN.corrupt(data / "topics" / "app", clean)
    named = f"app: offsets 25 to 36 are damaged: {0:020d}.log bytes 4638 to 8682: "

    with unchanged(data):
        checked = log_cli("check", "--data-dir", data)
        assert checked.code == LOSS
        assert named in checked.out
        tried = log_cli("repair", "--data-dir", data)
        assert tried.code == LOSS
        assert named in tried.out
        assert "--accept-loss" in tried.err
        assert log_cli("repair", "--data-dir", data, "--dry-run").code == LOSS
        assert log_cli("repair", "--data-dir", data, "--dry-run", "--accept-loss").code == SOUND
        report = json_lines(log_cli("check", "--data-dir", data, "-o", "json").out)["app"]
        assert not report["sound"]
        assert [(d["first"], d["next"]) for d in report["damages"]] == [(25, 37)]

    before = read_files(data / "topics" / "app")
    repaired = log_cli("repair", "--data-dir", data, "--accept-loss", "-o", "json")
    report = json_lines(repaired.out)["app"]
    assert repaired.code == SOUND
    assert report["sound"]
    assert report["damages"] == []
    assert [(d["first"], d["next"]) for d in report["accepted"]] == [(25, 37)]
    (copy,) = report["quarantine"]
    after = read_files(data / "topics" / "app")
    assert after[f"quarantine/{copy}"] == before[f"{0:020d}.log"][4638:8682]
    assert json_lines(repaired.out)["other"]["sound"]
    assert log_cli("check", "--data-dir", data).code == SOUND


def test_a_dry_run_does_not_say_that_a_loss_was_accepted(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    BETWEEN.corrupt(data / "topics" / "app", clean)
    text = log_cli("repair", "--data-dir", data, "--dry-run", "--accept-loss")
    assert "offsets 25 to 36" in text.out
    assert "app: accepted as lost" not in text.out


def test_only_the_topics_that_are_named(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    remove(44)(data / "topics" / "app", clean)
    assert log_cli("check", "--data-dir", data, "other").code == SOUND
    assert log_cli("check", "--data-dir", data, "app", "other").code == LOSS
    assert log_cli("check", LOGD_DATA_DIR=str(data)).code == LOSS
    with unchanged(data):
        assert log_cli("repair", "--data-dir", data, "--accept-loss", "other").code == SOUND


# -- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_topic_that_is_not_there(tmp_path: Path, clean: State, command: str) -> None:
    data = data_dir(tmp_path, clean)
    ran = log_cli(command, "--data-dir", data, "app", "nope")
    assert ran.code == USAGE
    assert ran.out == ""
    assert "has no topic nope" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_directory_that_is_no_data_directory(tmp_path: Path, command: str) -> None:
    (tmp_path / "photos").mkdir()
    ran = log_cli(command, "--data-dir", tmp_path / "photos")
    assert "is not a data directory" in ran.err
    assert ran.err.count("\n") == 1
    assert os.listdir(tmp_path / "photos") == []
    assert ran.code == USAGE


@pytest.mark.parametrize("command", ["check", "repair"])
def test_no_directory_at_all(tmp_path: Path, command: str) -> None:
    ran = log_cli(command, "--data-dir", tmp_path / "nothing")
    assert ran.code == USAGE
    assert "nothing" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_running_daemon_keeps_them_out(tmp_path: Path, clean: State, command: str) -> None:
    data = data_dir(tmp_path, clean)
    BETWEEN.corrupt(data / "topics" / "app", clean)
    with running(tmp_path), unchanged(data):
        ran = log_cli(command, "--data-dir", data)
        assert "in use by another logd; stop it" in ran.err
        assert ran.err.count("\n") == 1
        assert ran.out == ""
        assert ran.code == USAGE


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    path = data / "topics" / "app" / clean.parts[0].name
    path.unlink()
    path.mkdir()
    for arguments in (("check",), ("repair",), ("repair", "--accept-loss")):
        with unchanged(data):
            ran = log_cli(*arguments, "--data-dir", data)
            assert ran.code == USAGE
            assert "Traceback" not in ran.err


# -- progress -----------------------------------------------------------------------------------


def on_a_terminal(*arguments: str | Path) -> tuple[int, bytes]:
    """What log-cli writes to a terminal on its stderr."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    try:
        while data := os.read(ours, 65536):
            written += data
    except OSError:
        pass  # the other side is closed
    finally:
        os.close(ours)
    return process.wait(HANG_S), written


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path, clean: State) -> None:
    data, loop = data_dir(tmp_path, clean), Loop()
    small = on_a_terminal("check", "--data-dir", data)
    assert small == (SOUND, b"")  # not worth a bar
    topic = create(data / "topics" / "large", loop)
    for _ in range(9):
        push(topic, loop, batch_of([b"x" * (1 << 20)]))
    close(topic, loop)
    for command in ("check", "repair"):
        code, shown = on_a_terminal(command, "--data-dir", data)
        assert code == SOUND
        assert b"/9.4" in shown or b"MB" in shown
        assert on_a_terminal(command, "--data-dir", data, "--quiet") == (SOUND, b"")
        assert log_cli(command, "--data-dir", data).err == ""


# -- and then the daemon ------------------------------------------------------------------------

LOSSES = [
    (BETWEEN, [(25, 37)]),
    (Corruption("the first file is missing", remove(0), lambda s: []), [(0, 44)]),
    (Corruption("the middle file is missing", remove(44), lambda s: []), [(44, 58)]),
    (Corruption("the end of the newest", cut(2, 8, 3), lambda s: []), [(73, 76)]),
    (Corruption("the start of the newest", flip_header(2, 0), lambda s: []), [(58, 70)]),
    (Corruption("a body of the newest", flip_body(2, 9), lambda s: []), [(75, 76)]),
]


@pytest.mark.parametrize(("corruption", "lost"), LOSSES if LONG else LOSSES[:4], ids=repr)
async def test_a_daemon_goes_on_behind_an_accepted_loss(
    tmp_path: Path, clean: State, corruption: Corruption, lost: list[tuple[int, int]]
) -> None:
    data = data_dir(tmp_path, clean)
    corruption.corrupt(data / "topics" / "app", clean)
    assert log_cli("repair", "--data-dir", data, "--accept-loss").code == SOUND
    truth = {
        offset: message
        for batch in clean.batches
        for offset, message in enumerate(batch.messages, batch.first)
        if not any(first <= offset < next_ for first, next_ in lost)
    }
    checked = log_cli("check", "--data-dir", data, "app")
    (first, next_), count = lost[0], sum(next_ - first for first, next_ in lost)
    bytes_ = size_in(data / "topics" / "app")
    assert checked.code == SOUND
    assert checked.out == (
        f"app: no damage, {76 - count} messages, {bytes_} bytes, 1 gap\n"
        f"app: gap at offsets {first} to {next_ - 1}: {count} messages were lost and accepted"
        " as lost\n"
    )
    report = json_lines(log_cli("check", "--data-dir", data, "app", "-o", "json").out)["app"]
    assert (report["sound"], report["messages"]) == (True, 76 - count)
    assert report["gaps"] == [{"first": first, "next": next_}]
    server = running(tmp_path)
    async with server, dial(server) as line:
        stats = await line.values(b"STATS app")
        assert (stats["damages"], stats["first"], stats["next"]) == ("0", "0", "76")
        for first, next_ in lost:
            reply = await line.ask(b"READ app %d 1\r\n" % first)
            assert reply.head.startswith(b"BATCHES %d %d " % (first, next_ - first))
            words = reply.body.split(b" ")
            assert words[:4] == [b"BATCH", b"%d" % first, b"%d" % (next_ - first), b"0"]
            assert words[5] == b"gap"
            assert reply.body.count(b"\r\n") == 1
        gaps: list[Gap | Rewind] = []
        with Reader(server.address, "app", on_gap=gaps.append) as reader:
            assert {message.offset: message.value for message in reader} == truth
        assert [(gap.offset, gap.offset + gap.messages) for gap in gaps] == lost
        shown = log_cli("--host", server.address, "read", "app", "--offset", str(lost[0][0]))
        assert f"skipped offsets {lost[0][0]} to {lost[0][1] - 1}" in shown.err
        await line.send(b"PUSH app\r\none more\r\n")
        await line.expect(b"OK 76 1\r\n")
        assert messages((await line.ask(b"READ app 76 1\r\n")).body) == [b"one more"]
        assert server.stop() == 0
    async with server, dial(server) as line:
        assert (await line.values(b"STATS app"))["next"] == "77"
        assert messages((await line.ask(b"READ other first 9\r\n")).body) == OTHER
