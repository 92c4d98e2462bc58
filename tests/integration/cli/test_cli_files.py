"""`log-cli --data-dir`: the files of a stopped daemon, read without one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logd import Client
from tests.support.daemon import Daemon, running
from tests.support.log_cli import fill, log_cli

HOST = "127.0.0.1:1"  # nobody is there, and nobody is asked


def files(data: Path, *words: str) -> tuple[int, bytes, str]:
    return log_cli(HOST, *words, "--data-dir", str(data))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """What a daemon left that had ten messages in `app` and one in `other`."""
    with running(tmp_path, partition_bytes=1) as daemon, Client(daemon.address) as client:
        fill(daemon, 5)
        fill(daemon, 5)
        client.push("other", [b"x"])
        assert daemon.stop() == 0
    return daemon.data_dir


MESSAGES = b"m0\nm1\nm2\nm3\nm4\n" * 2


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["read", "app"], MESSAGES),
        (["read", "app", "--offset", "8"], b"m3\nm4\n"),
        (["read", "app", "--offset", "next"], b""),
        (["read", "app", "--limit", "2"], b"m0\nm1\n"),
        (["read", "app", "--tail", "1"], b"m4\n"),
        (["read", "app", "--since", "1h", "--until", "3"], b"m0\nm1\nm2\n"),
        (["read", "app", "--since", "1h", "--until", "1h"], b""),
        (["read", "app", "--until", "0s"], MESSAGES),
        (["read", "app", "--offset", "9", "-o", "raw"], b"m4"),
        (["read", "app", "--offset", "9", "--format", "{offset}:{size}:{value}"], b"9:2:m4\n"),
        (["tail", "app", "-n", "2"], b"m3\nm4\n"),
        (["topics", "-o", "json", "o*"], b'{"topic": "other", "first": 0, "next": 1, "bytes": 63,'
         b' "partitions": 1}\n'),
    ],
)  # fmt: skip
def test_commands(data: Path, words: list[str], printed: bytes) -> None:
    assert files(data, *words) == (0, printed, "")


def test_stats(data: Path) -> None:
    code, out, _ = files(data, "stats", "app", "-o", "json")
    stats = json.loads(out)
    assert (code, stats["topic"], stats["next"], stats["partitions"]) == (0, "app", 10, 2)
    assert (stats["damages"], stats["clean"]) == (0, 1)
    assert b"topics: 2\nfaulted_topics: 0\n" in files(data, "stats")[1]


def test_a_torn_tail_is_left_out_and_told(data: Path) -> None:
    newest = max((data / "topics" / "app").glob("*.log"))
    newest.write_bytes(newest.read_bytes() + b"BATCH 10 1")
    code, out, errors = files(data, "read", "app")
    assert (code, out) == (0, MESSAGES)
    assert f"{newest.name} ends in 10 bytes after the last whole batch" in errors
    assert files(data, "read", "-q", "app") == (0, MESSAGES, "")


def test_damage_is_3_after_what_comes_before_it(data: Path) -> None:
    oldest, newest = sorted((data / "topics" / "app").glob("*.log"))
    newest.write_bytes(newest.read_bytes().replace(b"m1", b"M1"))
    code, out, errors = files(data, "read", "app")
    assert (code, out) == (3, b"m0\nm1\nm2\nm3\nm4\n")
    assert "offset 5 or a later one is damaged" in errors
    oldest.unlink()
    code, out, errors = files(data, "read", "app")
    assert (code, out) == (3, b"")
    assert "first=0 next=5" in errors
    assert b"faulted_topics: 1\n" in files(data, "stats")[1]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["read", "app", "--forever"], 1, "--forever needs a daemon"),
        (["tail", "app", "-f"], 1, "--forever needs a daemon"),
        (["stats", "--watch"], 1, "--watch needs a daemon"),
        (["read", "app", "-H", HOST], 1, "cannot be used together"),
        (["topics", "-H", HOST], 1, "cannot be used together"),
        (["read", "nope"], 2, "has no topic nope"),
        (["tail", "nope"], 2, "has no topic nope"),
        (["stats", "nope"], 2, "has no topic nope"),
        (["read", "../app"], 2, "bad-topic"),
        (["read", "app", "--offset", "11"], 3, "first=0 next=10"),
    ],
)
def test_refusals(data: Path, words: list[str], code: int, says: str) -> None:
    got, out, errors = files(data, *words)
    assert (got, out) == (code, b"")
    assert says in errors


@pytest.mark.parametrize("words", [["read", "app"], ["topics"], ["stats"]])
def test_a_directory_that_is_none_of_a_daemon(tmp_path: Path, words: list[str]) -> None:
    code, _, errors = files(tmp_path, *words)
    assert code == 1
    assert "is not a data directory of logd" in errors
    assert files(tmp_path / "nowhere", *words)[0] == 1


def test_beside_a_daemon(daemon: Daemon) -> None:
    fill(daemon)
    for words in (["read", "app"], ["tail", "app"], ["topics"], ["stats"]):
        code, _, errors = files(daemon.data_dir, *words)
        assert code == 0
        assert errors.startswith("log-cli: a daemon is using ")
        assert files(daemon.data_dir, *words, "-q")[2] == ""
    assert files(daemon.data_dir, "read", "app")[1] == b"m0\nm1\nm2\n"


@contextmanager
def read_only(directory: Path, place: Path) -> Iterator[Path]:
    """The same directory, mounted where nothing of it can be changed."""
    place.mkdir()
    mounting = ["mount", "--bind", "-o", "ro", str(directory), str(place)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = f"no read-only mount here: {done.stderr.strip()}"
        print(reason)
        pytest.skip(reason)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_read_only_directory_without_indexes(data: Path, tmp_path: Path) -> None:
    for index in (data / "topics" / "app").glob("*.index"):
        index.unlink()
    with read_only(data, tmp_path / "mounted") as place:
        with pytest.raises(OSError):
            (place / "new").touch()
        assert files(place, "read", "app", "--offset", "3") == (0, MESSAGES[9:], "")
        assert files(place, "topics")[0] == 0
