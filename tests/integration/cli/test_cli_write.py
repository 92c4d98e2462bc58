"""`log-cli write`: how long it waits for a daemon, and what it reports however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logd import Client
from tests.support.daemon import HANG_S, ROOT, Daemon, lasting_address, running, wait_until
from tests.support.log_cli import log_cli, started

LARGE = b"x" * 9_000_000
LIMIT = "too-large: a batch is at most 8388608 bytes"


def test_a_line_that_is_too_large_is_named(daemon: Daemon) -> None:
    lines = b"a\nb\n" + LARGE + b"\nc\n"
    code, out, errors = log_cli(daemon, "write", "app", stdin=lines)
    assert (code, out) == (2, b"")
    # On a busy machine the connection may end before the reply is read; log-cli reconnects.
    assert errors.splitlines()[-2:] == [
        "log-cli: stored app 0..1 (2 messages); line 3 of stdin (9000000 bytes) was rejected,"
        " and nothing after it was stored",
        f"log-cli: {LIMIT}",
    ]
    assert log_cli(daemon, "read", "app")[1] == b"a\nb\n"


def test_a_line_of_the_second_file_is_named(daemon: Daemon, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1\n2\n")
    two.write_bytes(b"3\n" + LARGE)
    code, _, errors = log_cli(daemon, "write", "app", "--file", str(one), "--file", str(two))
    assert code == 2
    assert f"stored app 0..2 (3 messages); line 2 of {two} (9000000 bytes) was rejected" in errors


def test_a_line_that_never_ends_is_not_kept_in_memory(daemon: Daemon) -> None:
    command = "echo a; head -c 300000000 /dev/zero"
    with (
        subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE) as source,
        started(daemon, "write", "app", stdin=source.stdout) as process,
    ):
        assert source.stdout is not None
        source.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read().decode()
        assert process.wait(HANG_S) == 2
    assert errors.splitlines() == [
        "log-cli: stored app 0..0 (1 message); line 2 of stdin was rejected,"
        " and nothing after it was stored",
        "log-cli: too-large: the line has more than 268435456 bytes",
    ]


def test_lines_of_a_rejected_batch_are_named(tmp_path: Path) -> None:
    with running(tmp_path, max_batch_bytes=1000) as daemon:
        lines = b"".join(b"%099d\n" % n for n in range(20))
        code, _, errors = log_cli(daemon, "write", "app", stdin=lines)
    assert code == 2
    assert "nothing was stored; the batch that begins with line 1 of stdin was rejected" in errors


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_what_was_stored_is_reported_when_it_is_interrupted(
    daemon: Daemon, how: signal.Signals, code: int
) -> None:
    with Client(daemon.address) as client, started(daemon, "write", "app") as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\nhalf a line")
        process.stdin.flush()
        wait_until(lambda: [info.next for info in client.topics("app")] == [2])
        process.send_signal(how)
        assert process.stderr is not None
        assert process.stderr.read() == b"log-cli: interrupted; stored app 0..1 (2 messages)\n"
        assert process.wait(HANG_S) == code


def test_what_was_stored_is_reported_where_stdout_is_full(daemon: Daemon) -> None:
    command = [sys.executable, "-m", "cli", "--host", daemon.address, "write", "app", "x"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=HANG_S, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr.decode().splitlines() == [
        "log-cli: stored app 0..0 (1 message), but writing to standard output failed",
        "log-cli: No space left on device",
    ]


def test_that_nobody_reads_what_was_stored_is_no_error(daemon: Daemon) -> None:
    with started(daemon, "write", "app") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(b"x\n")
        process.stdin.close()
        assert process.wait(HANG_S) == 0


def test_without_wait_a_missing_daemon_is_an_error_at_once(nobody: str) -> None:
    code, out, errors = log_cli(nobody, "write", "app", "x")
    assert (code, out) == (1, b"")
    assert errors.startswith(f"log-cli: no logd answers at {nobody}")
    assert "--wait" in errors


@pytest.mark.parametrize("wait", ["1m", "forever"])
def test_wait_for_a_daemon_that_starts_later(tmp_path: Path, wait: str) -> None:
    address = lasting_address()
    with started(address, "write", "app", "x", "--wait", wait) as process:
        assert process.stderr is not None
        assert b"; retrying\n" in process.stderr.readline()
        with running(tmp_path, "--host", address):
            assert process.stdout is not None
            assert process.stdout.read() == b"app 0..0 (1 message)\n"
            assert process.wait(HANG_S) == 0


def test_wait_for_a_daemon_that_goes_away(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--host", lasting_address()) as daemon,
        started(daemon, "write", "app", "--wait", "forever") as process,
    ):
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"a\n")
        process.stdin.flush()
        with Client(daemon.address) as client:
            wait_until(lambda: client.topics("app"))
        daemon.stop()
        process.stdin.write(b"b\n")
        process.stdin.close()
        process.stdin = None
        assert b"; retrying\n" in process.stderr.readline()
        daemon.start()
        assert process.stdout is not None
        assert process.stdout.read() == b"app 0..1 (2 messages)\n"
        assert process.wait(HANG_S) == 0


def test_a_daemon_that_goes_away_for_good(daemon: Daemon) -> None:
    with started(daemon, "write", "app") as process:
        assert process.stdin is not None
        process.stdin.write(b"a\n")
        process.stdin.flush()
        with Client(daemon.address) as client:
            wait_until(lambda: client.topics("app"))
        daemon.kill()
        process.stdin.write(b"b\nc\n")
        process.stdin.close()
        process.stdin = None
        assert process.stderr is not None
        *_, report, error = process.stderr.read().decode().splitlines()
        assert process.wait(HANG_S) == 1
    assert report == (
        "log-cli: stored app 0..0 (1 message); line 2 of stdin and the lines after it were not"
        " acknowledged and may or may not be stored"
    )
    assert "Connection refused" in error


@pytest.mark.parametrize("wait", ["5", "soon", "-1s", ""])
def test_no_duration(nobody: str, wait: str) -> None:
    code, _, errors = log_cli(nobody, "write", "app", "x", f"--wait={wait}")
    assert code == 1
    assert "--wait" in errors
    assert "30s" in errors
