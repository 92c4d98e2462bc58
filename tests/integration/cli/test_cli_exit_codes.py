"""Every exit code of every command, as far as it can have it.

0 done, 1 usage or no connection, 2 refused by the server, 3 out of range or data loss, 130
interrupted. Codes of `--data-dir` are with its tests, those of check and repair on damage with
theirs.
"""

from __future__ import annotations

import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.daemon import HANG_S, Daemon, running
from tests.support.log_cli import fill, log_cli, started

DONE = [
    ["read", "app"],
    ["write", "app", "x"],
    ["tail", "app"],
    ["stats"],
    ["stats", "app"],
    ["topics"],
    ["topics", "no*"],
    ["ping"],
    ["bench", "--messages", "10"],
]


@pytest.mark.parametrize("words", DONE, ids=" ".join)
def test_done_is_0(daemon: Daemon, words: list[str]) -> None:
    fill(daemon)
    assert log_cli(daemon, *words)[0] == 0


@pytest.mark.parametrize("words", DONE, ids=" ".join)
def test_no_connection_is_1(nobody: str, words: list[str]) -> None:
    code, out, errors = log_cli(nobody, *words)
    assert (code, out) == (1, b"")
    assert errors.startswith(f"log-cli: no logd answers at {nobody} ")
    assert "logd --data-dir" in errors


@pytest.mark.parametrize(
    "command", sorted({words[0] for words in DONE} | {"check", "repair", "backup", "restore"})
)
def test_misuse_is_1(command: str) -> None:
    code, out, errors = log_cli("", command, "--no-such-option")
    assert (code, out) == (1, b"")
    assert "--no-such-option" in errors


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_directory_in_use_is_1(daemon: Daemon, command: str) -> None:
    fill(daemon)
    code, out, errors = log_cli("", command, "--data-dir", str(daemon.data_dir))
    assert (code, out) == (1, b"")
    assert "in use by another logd" in errors
    daemon.stop()
    assert log_cli("", command, "--data-dir", str(daemon.data_dir))[0] == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["read", "nope"], "not-found"),
        (["read", "nope", "other"], "not-found"),
        (["tail", "nope"], "not-found"),
        (["stats", "nope"], "not-found"),
        (["stats", "nope", "--watch"], "not-found"),
        (["write", "a/b", "x"], "bad-topic"),
        (["write", "\udcff", "x"], "bad-topic"),
        (["bench", "a/b"], "bad-topic"),
        (["topics", "a b"], "bad-request"),
    ],
    ids=str,
)
def test_refused_is_2(empty: Daemon, words: list[str], reason: str) -> None:
    code, out, errors = log_cli(empty, *words)
    assert (code, out) == (2, b"")
    assert errors.splitlines()[-1].startswith(f"log-cli: {reason}: ")


def test_a_write_to_a_faulted_topic_is_3(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fill(daemon)
        daemon.stop()
        (daemon.topic_dir("app") / "meta.json").unlink()
        damaged = str(daemon.data_dir)
        assert log_cli("", "check", "--data-dir", damaged)[0] == 3
        assert log_cli("", "repair", "--data-dir", damaged)[0] == 3
        daemon.start()
        assert log_cli(daemon, "write", "app", "x")[0] == 3
        assert log_cli(daemon, "read", "app")[:2] == (0, b"m0\nm1\nm2\n")
        daemon.stop()
        assert log_cli("", "repair", "--data-dir", damaged, "--accept-loss")[0] == 0


def test_damaged_offsets_are_3_for_read_and_tail(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        fill(daemon)
        daemon.stop()
        daemon.log_files("app")[0].unlink()
        daemon.start()
        for command in ("read", "tail"):
            code, out, errors = log_cli(daemon, command, "app")
            assert (code, out) == (3, b"")
            assert "first=0 next=3" in errors


@pytest.mark.parametrize(
    "words",
    [["write", "app"], ["read", "-f", "app"], ["tail", "-f", "app"], ["stats", "--watch", "0.1"]],
    ids=" ".join,
)
def test_interrupted_is_130(daemon: Daemon, words: list[str]) -> None:
    fill(daemon)
    with started(daemon, *words) as process:
        _until_it_works(process, words[0])
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def _until_it_works(process: subprocess.Popen[bytes], command: str) -> None:
    assert process.stdout is not None
    assert process.stdin is not None
    if command == "write":  # more than the pipe holds: it has been read from
        process.stdin.write(b"x" * 99_999 + b"\n")
        process.stdin.flush()
    else:
        process.stdout.readline()


@pytest.mark.parametrize("words", [["ping"], ["stats"], ["topics"], ["read", "app"], ["bench"]])
def test_interrupted_while_the_daemon_says_nothing(words: list[str]) -> None:
    deaf = socket.create_server(("127.0.0.1", 0))
    deaf.settimeout(HANG_S)  # what is started may end before it comes
    address = f"127.0.0.1:{deaf.getsockname()[1]}"
    with closing(deaf), started(address, *words) as process, closing(deaf.accept()[0]) as taken:
        assert taken.recv(10)  # it has asked, and waits
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 130
