"""`log-cli` as people use it: a process, pipes, signals, exit codes."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from logd import Client, Reader, Writer
from logd.batch import body_sum, encode_header
from tests.support.daemon import HANG_S, Daemon, lasting_address, running
from tests.support.log_cli import fill, log_cli, on_terminal, started


def test_write_arguments_and_read_them(daemon: Daemon) -> None:
    assert log_cli(daemon, "write", "app", "a", "b c", "") == (0, b"app 0..2 (3 messages)\n", "")
    assert log_cli(daemon, "write", "app", "-q", "d") == (0, b"", "")
    assert log_cli(daemon, "read", "app") == (0, b"a\nb c\n\nd\n", "")


def test_write_lines_of_stdin(daemon: Daemon) -> None:
    assert log_cli(daemon, "write", "app", stdin=b"a\r\n\n\xff")[:2] == (
        0,
        b"app 0..2 (3 messages)\n",
    )
    assert log_cli(daemon, "write", "app", "-", stdin=b"b\n")[:2] == (0, b"app 3..3 (1 message)\n")
    assert log_cli(daemon, "write", "app", stdin=b"")[:2] == (0, b"app: no messages\n")
    assert log_cli(daemon, "read", "app")[1] == b"a\r\n\n\xff\nb\n"


def test_write_files(daemon: Daemon, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1\n2\n")
    two.write_bytes(b"3")
    files = ["--file", str(one), "--file", str(two)]
    assert log_cli(daemon, "write", "app", *files, "--compress")[1] == b"app 0..2 (3 messages)\n"
    assert log_cli(daemon, "read", "app")[1] == b"1\n2\n3\n"
    assert log_cli(daemon, "write", "app", "x", *files)[0] == 1
    assert log_cli(daemon, "write", "app", "--file", str(tmp_path / "none"))[0] == 1


def test_a_long_file_has_a_progress_bar_on_a_terminal(daemon: Daemon, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.write_bytes((b"x" * 99 + b"\n") * 90_000)
    drawn = on_terminal(daemon, "write", "app", "--file", str(long), stderr_too=True)
    assert drawn.endswith("app 0..89999 (90000 messages)\r\n")
    assert "MB" in drawn


def test_a_slow_pipe_arrives_line_by_line(daemon: Daemon) -> None:
    fill(daemon, 1)
    end_ms = time.time_ns() // 1_000_000 + int(HANG_S * 1000)
    with (
        started(daemon, "write", "app") as process,
        Reader(daemon.address, "app", start=1, follow=True, until_ms=end_ms) as reader,
    ):
        assert process.stdin is not None
        arriving = iter(reader)
        for n in range(3):
            process.stdin.write(b"line %d\n" % n)
            process.stdin.flush()
            assert next(arriving).value == b"line %d" % n
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One with three messages, for tests that only read."""
    with running(tmp_path_factory.mktemp("three")) as daemon:
        fill(daemon)
        yield daemon


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], b"m0\nm1\nm2\n"),
        (["--offset", "1"], b"m1\nm2\n"),
        (["--offset", "first", "--limit", "2"], b"m0\nm1\n"),
        (["--offset", "next"], b""),
        (["--offset", "3"], b""),
        (["--tail", "1"], b"m2\n"),
        (["--tail", "0"], b""),
        (["--tail", "99"], b"m0\nm1\nm2\n"),
        (["--since", "1h"], b"m0\nm1\nm2\n"),
        (["--since", "2001-01-01", "--limit", "1"], b"m0\n"),
        (["--since", "@99999999999999"], b""),
        (["-o", "raw"], b"m0m1m2"),
        (["--format", "{topic} {offset}\\t{message}"], b"app 0\tm0\napp 1\tm1\napp 2\tm2\n"),
        (["--forever", "--limit", "2"], b"m0\nm1\n"),
    ],
)
def test_read(three: Daemon, options: list[str], printed: bytes) -> None:
    code, out, _ = log_cli(three, "read", "app", *options)
    assert (code, out) == (0, printed)


def test_read_as_json(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"text", b"\xff"])
    lines = log_cli(daemon, "read", "app", "-o", "json")[1].splitlines()
    first, second = map(json.loads, lines)
    assert (first["topic"], first["offset"], first["message"]) == ("app", 0, "text")
    assert (second["offset"], second["message_base64"]) == (1, "/w==")
    assert first["time"].endswith("Z")


def test_following_prints_at_once_until_interrupted(daemon: Daemon) -> None:
    fill(daemon, 1)
    with Client(daemon.address) as client, started(daemon, "read", "-f", "app") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"m0\n"
        for n in range(3):
            client.push("app", [b"late %d" % n])
            assert process.stdout.readline() == b"late %d\n" % n
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b"log-cli: following app; press Ctrl-C to stop\n"


def test_a_follower_whose_daemon_is_restarted_says_so_and_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, "--host", lasting_address()) as daemon:
        fill(daemon, 1)
        with started(daemon, "read", "-f", "app") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"m0\n"
            daemon.stop()
            assert b"following app" in process.stderr.readline()
            assert b"retrying" in process.stderr.readline()
            daemon.start()
            fill(daemon, 1)
            assert process.stdout.readline() == b"m0\n"


def test_tail_and_follow(daemon: Daemon) -> None:
    fill(daemon, 20)
    assert log_cli(daemon, "tail", "app")[1].split() == [b"m%d" % n for n in range(10, 20)]
    assert log_cli(daemon, "tail", "app", "-n", "2", "--format", "{offset}")[1] == b"18\n19\n"
    with Client(daemon.address) as client, started(daemon, "tail", "app", "-f", "-qn1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"m19\n"
        client.push("app", [b"late"])
        assert process.stdout.readline() == b"late\n"


def test_a_reader_of_the_output_may_go_away(daemon: Daemon) -> None:
    with Writer(daemon.address, "app") as writer:
        writer.write_many([b"x" * 100] * 50_000)
    for options in ([], ["-f"], ["-o", "json"]):
        with started(daemon, "read", "app", "-q", *options) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait() == 0
            assert process.stderr.read() == b""


def test_stats_topics_and_ping(daemon: Daemon) -> None:
    assert log_cli(daemon, "topics") == (0, b"", "log-cli: no topic matches *\n")
    fill(daemon)
    log_cli(daemon, "write", "other", "x")
    heads, *rows = [line.split() for line in log_cli(daemon, "topics")[1].splitlines()]
    assert heads == [b"TOPIC", b"FIRST", b"NEXT", b"BYTES", b"PARTITIONS"]
    assert [row[:3] for row in rows] == [[b"app", b"0", b"3"], [b"other", b"0", b"1"]]
    (line,) = log_cli(daemon, "topics", "o*", "-o", "json")[1].splitlines()
    assert json.loads(line)["topic"] == "other"
    assert b"next: 3\n" in log_cli(daemon, "stats", "app")[1]
    assert json.loads(log_cli(daemon, "stats", "app", "-o", "json")[1])["next"] == 3
    assert json.loads(log_cli(daemon, "stats", "-o", "json")[1])["topics"] == 2
    assert b" answered in " in log_cli(daemon, "ping")[1]


def test_the_host_can_stand_before_and_behind_the_command(daemon: Daemon, nobody: str) -> None:
    assert log_cli(nobody, "--host", daemon.address, "ping")[0] == 0
    assert log_cli(nobody, "ping", "-H", daemon.address)[0] == 0
    assert log_cli(daemon, "-H", nobody, "ping")[0] == 1
    assert log_cli(daemon, "-H", nobody, "ping", "-H", daemon.address)[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["read"],
        ["nonsense"],
        ["read", "app", "--limit", "0"],
        ["read", "app", "--offset", "-1"],
        ["read", "app", "--offset", "1", "--tail", "1"],
        ["read", "app", "--since", "soon"],
        ["read", "app", "-o", "xml"],
        ["read", "app", "--format", "{nope}"],
        ["-H", "::1", "ping"],
    ],
)
def test_misuse_is_1(nobody: str, words: list[str]) -> None:
    code, out, errors = log_cli(nobody, *words)
    assert (code, out) == (1, b"")
    assert errors


def test_an_offset_above_the_end_is_3(daemon: Daemon) -> None:
    fill(daemon)
    for extra in ([], ["--or-first"]):
        code, out, errors = log_cli(daemon, "read", "app", "--offset", "4", *extra)
        assert (code, out) == (3, b"")
        assert "first=0 next=3" in errors


class Canned:
    """A daemon that answers lines with these replies: for what a young one has not got yet."""

    def __init__(self, *replies: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._answer, args=(replies,))
        self._thread.start()

    def _answer(self, replies: tuple[bytes, ...]) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # closed before anybody came
            return
        with connection, connection.makefile("rb") as lines:
            for reply in (b"ERR not-found no such topic\r\n", *replies):  # the first is for STATS
                lines.readline()
                connection.sendall(reply)
            lines.read()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # a close alone wakes nobody who accepts
        self._thread.join(HANG_S)
        self._listener.close()
        assert not self._thread.is_alive()


def batches(offset: int, body: bytes) -> bytes:
    count = body.count(b"\n")
    batch = encode_header(offset, count, len(body), 5, "lines", body_sum(body)) + body
    return b"BATCHES %d %d %d\r\n%s" % (offset, count, len(batch), batch)


GONE = b"ERR out-of-range first=7 next=8\r\n"
END = b"BATCHES 8 0 0\r\n"


def test_an_offset_that_is_gone_is_3() -> None:
    with closing(Canned(GONE)) as peer:
        code, out, errors = log_cli(peer.address, "read", "app", "--offset", "3")
    assert (code, out) == (3, b"")
    assert "first=7 next=8" in errors
    assert "--or-first" in errors


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_or_first_goes_on_and_says_what_it_skipped(quiet: list[str]) -> None:
    with closing(Canned(GONE, batches(7, b"seven\n"), END)) as peer:
        words = ["read", "app", "--offset", "3", "--or-first", *quiet]
        code, out, errors = log_cli(peer.address, *words)
    assert (code, out) == (0, b"seven\n")
    said = "log-cli: skipped offsets 3 to 6: they have expired\n"
    assert errors == ("" if quiet else said)


def test_damage_is_3_and_prints_nothing_of_it() -> None:
    damaged = batches(7, b"seven\n").replace(b"seven", b"sEven")
    with closing(Canned(batches(6, b"six\n"), damaged)) as peer:
        code, out, errors = log_cli(peer.address, "read", "app")
    assert (code, out) == (3, b"six\n")
    assert "does not match its sum" in errors


def test_help() -> None:
    assert b"Commands:" in log_cli("", "--help")[1]
    for command in ("write", "read", "tail", "stats", "topics", "ping"):
        code, out, _ = log_cli("", command, "-h")
        assert code == 0
        assert b"--host" in out


def test_version() -> None:
    assert log_cli("", "--version") == (0, b"log-cli 0.1.0\n", "")
