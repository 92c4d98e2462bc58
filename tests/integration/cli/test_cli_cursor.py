"""`log-cli read --cursor`: only messages that were read from the output count as read."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logd import Client
from logd.errors import NotFound
from tests.support.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.support.log_cli import LOG_CLI, environment, log_cli

MESSAGES = 50_000
WIDTH = 8  # bytes of a message with its line end


def line(n: int) -> bytes:
    return b"m%06d\n" % n


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Far more messages than fit into a pipe; each test has a cursor of its own."""
    with running(tmp_path_factory.mktemp("filled")) as daemon:
        with Client(daemon.address) as client:
            for n in range(0, MESSAGES, 10_000):
                client.push("app", [line(i)[:-1] for i in range(n, n + 10_000)])
        yield daemon


def cursor(daemon: Daemon, name: str) -> int | None:
    with Client(daemon.address) as client:
        try:
            return client.cursor("app", name).offset
        except NotFound:
            return None


def start(daemon: Daemon, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*LOG_CLI, "read", "app", "-q", *words],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(daemon),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    assert process.stderr is not None
    with process.stderr as errors:
        return process.wait(HANG_S), errors.read()


def take(fd: int, size: int) -> bytes:
    """Exactly so many bytes of a pipe."""
    data = b""
    while len(data) < size:
        assert select.select([fd], [], [], HANG_S)[0]
        data += os.read(fd, size - len(data))
    return data


@pytest.mark.parametrize("options", [[], ["--forever"]], ids=str)
@pytest.mark.parametrize("lines", [1, 3])
def test_head_takes_as_many_messages_as_it_prints(
    filled: Daemon, options: list[str], lines: int
) -> None:
    name = f"head-{lines}-{len(options)}"
    command = [*LOG_CLI, "read", "app", "-q", "--cursor", name, *options, "|", "head", f"-{lines}"]
    for n in range(0, 3 * lines, lines):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {' '.join(command)}"],
            cwd=ROOT,
            env=environment(filled),
            capture_output=True,
            timeout=HANG_S,
            check=False,
        )
        expected = b"".join(map(line, range(n, n + lines)))
        assert (done.returncode, done.stdout, done.stderr) == (0, expected, b"")
        assert cursor(filled, name) == n + lines


FORMS: dict[str, tuple[list[str], Callable[[int], bytes]]] = {
    "text": ([], line),
    "raw": (["-o", "raw"], lambda n: line(n)[:-1]),
    "template": (["--format", "{offset}: {message}"], lambda n: b"%d: %s" % (n, line(n))),
}


@pytest.mark.parametrize(
    ("messages", "form"),
    [(0, "text"), (1, "raw"), (900, "template"), (5000, "text"), (5000, "raw"), (5000, "template")],
)
def test_a_reader_that_closes_the_pipe_after_some_bytes(
    filled: Daemon, messages: int, form: str
) -> None:
    name = f"bytes-{messages}-{form}"
    options, rendered = FORMS[form]
    expected = b"".join(map(rendered, range(messages))) + rendered(messages)[:3]
    process = start(filled, "--cursor", name, *options)
    assert process.stdout is not None
    with process.stdout as pipe:
        assert take(pipe.fileno(), len(expected)) == expected
    assert ended(process) == (0, b"")
    assert cursor(filled, name) == (messages or None)


@pytest.mark.parametrize("follow", [[], ["--forever"]], ids=str)
@pytest.mark.parametrize(
    ("end", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_what_is_in_the_pipe_when_it_is_interrupted_comes_again(
    filled: Daemon, end: signal.Signals, code: int, follow: list[str]
) -> None:
    name = f"{end.name}-{len(follow)}"
    process = start(filled, "--cursor", name, *follow)
    assert process.stdout is not None
    with process.stdout as pipe:
        take(pipe.fileno(), 5000 * WIDTH)
        process.send_signal(end)
        assert ended(process) == (code, b"")
    assert cursor(filled, name) == 5000


def test_what_is_in_the_pipe_when_it_is_killed_comes_again(filled: Daemon) -> None:
    process = start(filled, "--cursor", "killed", "--forever")
    assert process.stdout is not None
    with process.stdout as pipe:
        taken = len(take(pipe.fileno(), 5000 * WIDTH)) // WIDTH
        # The cursor is saved once per second, also while nothing is read from the full pipe.
        wait_until(lambda: cursor(filled, "killed") == taken)
        process.kill()
        ended(process)
    assert cursor(filled, "killed") == taken


def test_a_consumer_that_reads_to_the_end_gets_each_message_once(filled: Daemon) -> None:
    code, out, errors = log_cli(filled, "read", "app", "--cursor", "all")
    assert (code, out, errors) == (0, b"".join(map(line, range(MESSAGES))), "")
    assert cursor(filled, "all") == MESSAGES
    assert log_cli(filled, "read", "app", "--cursor", "all")[:2] == (0, b"")


def test_it_ends_when_the_last_message_was_read(filled: Daemon) -> None:
    """A consumer that stops between two messages finds the rest at its next start."""
    process = start(filled, "--cursor", "slow", "--limit", "3")
    assert process.stdout is not None
    with process.stdout as pipe:
        take(pipe.fileno(), 2 * WIDTH)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    assert ended(process) == (0, b"")
    assert cursor(filled, "slow") == 2


def test_output_to_a_file_counts_as_read(filled: Daemon, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = start(filled, "--cursor", "file", "--limit", "2000", stdout=out.fileno())
        assert ended(process) == (0, b"")
    assert (tmp_path / "out").stat().st_size == 2000 * WIDTH
    assert cursor(filled, "file") == 2000


@pytest.mark.parametrize("closes", [True, False])
def test_output_to_a_socket(filled: Daemon, closes: bool) -> None:
    """As programs that start others with sockets do: what the socket still holds is not read."""
    ours, theirs = socket.socketpair()
    name = f"socket-{closes}"
    with ours:
        process = start(filled, "--cursor", name, stdout=theirs.fileno())
        theirs.close()
        if closes:
            take(ours.fileno(), 5000 * WIDTH)
        else:
            take(ours.fileno(), MESSAGES * WIDTH)
            assert ended(process) == (0, b"")
    if closes:
        assert ended(process) == (0, b"")
        saved = cursor(filled, name)
        assert saved is None or saved <= 5000  # a closed socket does not say how much was read
    else:
        assert cursor(filled, name) == MESSAGES


def test_a_cursor_file_is_the_same(filled: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    process = start(filled, "--cursor-file", str(file))
    assert process.stdout is not None
    with process.stdout as pipe:
        take(pipe.fileno(), 7 * WIDTH)
    assert ended(process) == (0, b"")
    assert '"offset": 7' in file.read_text()


@pytest.mark.parametrize("place", [["--offset", "5"], ["--since", "1h"], ["--tail", "2"]], ids=str)
def test_a_place_is_for_a_new_cursor_and_a_notice_says_so(
    filled: Daemon, place: list[str], tmp_path: Path
) -> None:
    option = place[0]
    for mark in (["--cursor", f"place{option}"], ["--cursor-file", str(tmp_path / "c")]):
        words = ["read", "app", *mark, *place, "--limit", "1"]
        code, _, errors = log_cli(filled, *words)
        assert (code, errors) == (0, "")
        kept = {"--offset": 6, "--since": 1, "--tail": MESSAGES - 1}[option]
        code, out, errors = log_cli(filled, *words)
        assert (code, out) == (0, line(kept))
        assert errors == (
            f"log-cli: the cursor exists; starting at its offset {kept} and ignoring {option}\n"
        )
        assert log_cli(filled, *words, "-q")[2] == ""
