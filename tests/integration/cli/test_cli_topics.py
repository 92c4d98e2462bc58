"""`log-cli read` of several topics, and with cursors."""

from __future__ import annotations

from pathlib import Path

import pytest

from logd import Client
from tests.support.daemon import Daemon
from tests.support.log_cli import log_cli


@pytest.fixture
def filled(daemon: Daemon) -> Daemon:
    with Client(daemon.address) as client:
        client.push("app", [b"1", b"2", b"3"])
        before = client.partitions("app")[0].max_time_ms
        while client.push("web-1", [b"x"]) and client.partitions("web-1")[0].max_time_ms <= before:
            pass
    return daemon


def test_several_topics(filled: Daemon) -> None:
    _, out, _ = log_cli(filled, "read", "app", "web-*", "--merge", "arrival", "--limit", "4")
    assert out == b"app: 1\napp: 2\napp: 3\nweb-1: x\n"
    _, out, _ = log_cli(filled, "read", "a*", "--format", "{topic} {offset}")
    assert out == b"app 0\napp 1\napp 2\n"
    assert log_cli(filled, "read", "none-*")[:2] == (0, b"")
    assert log_cli(filled, "read", "app", "missing")[0] == 2


def test_a_cursor_goes_on_where_it_was(filled: Daemon) -> None:
    read = ("read", "app", "--cursor", "me", "--limit", "2")
    assert [log_cli(filled, *read)[1] for _ in range(3)] == [b"1\n2\n", b"3\n", b""]
    assert b"cursor.me: 3 lag=0" in log_cli(filled, "stats", "app")[1]


def test_a_cursor_in_a_file(filled: Daemon, tmp_path: Path) -> None:
    file = ("--cursor-file", str(tmp_path / "cursor"))
    read = ("read", "app", *file, "--limit", "2")
    assert [log_cli(filled, *read)[1] for _ in range(3)] == [b"1\n2\n", b"3\n", b""]
    code, _, error = log_cli(filled, "read", "web-1", *file)
    assert code == 2
    assert "belongs to topic app" in error


@pytest.mark.parametrize(
    "arguments",
    [
        ("app", "--cursor", "a", "--cursor-file", "b"),
        ("app", "web-1", "--cursor", "a"),
        ("app", "web-1", "--until", "5"),
        ("app", "web-1", "--merge", "size"),
    ],
)
def test_what_does_not_go_together(filled: Daemon, arguments: tuple[str, ...]) -> None:
    assert log_cli(filled, "read", *arguments)[0] == 1
