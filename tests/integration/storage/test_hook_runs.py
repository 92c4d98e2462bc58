"""One run of a delete hook: what it is given, how it ends, and what it may print."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from logd.storage import delete_hooks
from logd.storage.delete_hooks import Hook, RunningHooks, retry_pause_s, run_hook
from tests.integration.storage.gates import Gate, is_running, script
from tests.support.daemon import HANG_S, wait_until

VARIABLES = {
    "LOGD_TOPIC": "app",
    "LOGD_PARTITION": f"{3:020d}.log",
    "LOGD_FIRST": "3",
    "LOGD_NEXT": "7",
    "LOGD_BYTES": "123",
    "LOGD_MIN_TIME": "1700000000000",
    "LOGD_MAX_TIME": "1700000000001",
}
TIMEOUT_S = 3.0  # of a hook that first gets ready for its end, on a busy machine too


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    directory = tmp_path / "a data dir" / "topics" / "app"
    directory.mkdir(parents=True)
    path = directory / f"{3:020d}.log"
    path.write_bytes(b"BATCH ...")
    return path


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "logd")
    return caplog


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_hooks, "_GRACE_S", 0.2)


def run(path: Path, *command: str | Path, timeout_s: float = HANG_S) -> bool:
    return run_hook(Hook(tuple(map(str, command)), path, VARIABLES, timeout_s), RunningHooks())


# -- what it is given ---------------------------------------------------------------------------


def test_its_arguments_are_the_words_of_the_list_and_the_path(
    tmp_path: Path, partition: Path
) -> None:
    """No shell looks at them: what a shell would run or expand stays text."""
    hook = script(tmp_path / "a hook", f"printf '[%s]\\n' \"$@\" > '{tmp_path}/words'")
    odd = ["$(touch ran)", "`touch ran`", "a b", "*", "~", "$HOME", "; touch ran", "", "--", "\\n"]
    assert run(partition, hook, *odd)
    words = (tmp_path / "words").read_text().splitlines()
    assert words == [f"[{word}]" for word in (*odd, str(partition))]
    assert not list(tmp_path.rglob("ran"))
    assert not Path("ran").exists()


def test_its_environment_is_small_and_clean(
    tmp_path: Path, partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LOGD_TOKEN", "secret")
    monkeypatch.setenv("LD_PRELOAD", "")
    hook = script(tmp_path / "hook", f"cat /proc/$$/environ > '{tmp_path}/environ'")
    assert run(partition, hook)
    variables = dict(
        word.split("=", 1) for word in (tmp_path / "environ").read_text().rstrip("\0").split("\0")
    )
    path = variables.pop("PATH")
    assert set(path.split(":")) >= {"/usr/bin", "/bin"}
    assert variables.pop("LANG") == "C.UTF-8"
    assert variables == VARIABLES


def test_it_inherits_no_open_file_no_input_and_no_terminal(tmp_path: Path, partition: Path) -> None:
    hook = script(
        tmp_path / "hook",
        f"for fd in /proc/$$/fd/*; do readlink $fd; done > '{tmp_path}/files'",
        f"readlink /proc/$$/fd/0 > '{tmp_path}/input'",
        f"(cut -d ' ' -f 6,7 /proc/$$/stat; echo $$) > '{tmp_path}/session'",
    )
    with given_to_children(tmp_path):
        assert run(partition, hook)
    assert str(tmp_path) not in (tmp_path / "files").read_text().splitlines()
    assert (tmp_path / "input").read_text() == "/dev/null\n"
    session, terminal, pid = (tmp_path / "session").read_text().split()
    assert (session, terminal) == (pid, "0")


@contextmanager
def given_to_children(path: Path) -> Iterator[None]:
    """Open as this process's input, and as a file that children would inherit."""
    opened, aside = os.open(path, os.O_RDONLY), os.dup(0)
    os.set_inheritable(opened, True)
    os.dup2(opened, 0)
    try:
        yield
    finally:
        os.dup2(aside, 0)
        os.close(aside)
        os.close(opened)


def test_it_runs_beside_thousands_of_connections(tmp_path: Path, partition: Path) -> None:
    """Its pipe then has a number that not every way to wait for a file can take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1200)]
    try:
        assert run(partition, script(tmp_path / "hook", "echo done"))
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- how it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "succeeds"),
    [
        ("exit 0", True),
        ("exit 1", False),
        ("exit 255", False),
        ("kill -KILL $$", False),
        ("kill -TERM $$", False),
        ("exec >&- 2>&-; exit 0", True),
        ("exec >&- 2>&-; exit 3", False),
        ("echo to stderr >&2; exit 0", True),
    ],
)
def test_only_exit_0_lets_the_partition_go(
    tmp_path: Path, partition: Path, line: str, succeeds: bool
) -> None:
    assert run(partition, script(tmp_path / "hook", line)) is succeeds


def test_a_failure_is_logged_with_its_reason(
    tmp_path: Path, partition: Path, log: pytest.LogCaptureFixture
) -> None:
    run(partition, script(tmp_path / "hook", "exit 7"))
    assert f"delete hook of topic app, {partition.name}: exit 7; the partition is kept" in log.text


@pytest.mark.parametrize(
    "make",
    [
        lambda path: None,
        lambda path: path.write_text("#!/bin/sh\n"),
        lambda path: (path.write_text("#!/no/such/shell\n"), path.chmod(0o755)),
        lambda path: (path.write_bytes(b"\x7fELF nonsense"), path.chmod(0o755)),
        lambda path: path.mkdir(),
    ],
    ids=["missing", "not executable", "no interpreter", "not a program", "a directory"],
)
def test_one_that_cannot_be_started_keeps_the_partition(
    tmp_path: Path, partition: Path, make: object, log: pytest.LogCaptureFixture
) -> None:
    make(tmp_path / "hook")  # type: ignore[operator]
    assert run(partition, tmp_path / "hook") is False
    assert "cannot start" in log.text


def test_words_that_no_command_can_have_are_a_failure_with_a_reason(
    partition: Path, log: pytest.LogCaptureFixture
) -> None:
    assert run(partition, "/bin/true", "a\0b") is False
    assert "cannot start /bin/true: embedded null byte" in log.text


def test_one_that_takes_too_long_is_asked_to_end(
    tmp_path: Path, partition: Path, log: pytest.LogCaptureFixture
) -> None:
    hook = script(
        tmp_path / "hook",
        f"trap 'echo asked > \"{tmp_path}/asked\"; exit 0' TERM",
        "while :; do read line; done < /dev/tty0 2>/dev/null; sleep 1000 & wait",
    )
    assert run(partition, hook, timeout_s=TIMEOUT_S) is False  # also if it says 0 then
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert "still running after 3.0 s" in log.text


@pytest.mark.usefixtures("short_grace")
def test_one_that_does_not_listen_is_killed_with_all_it_started(
    tmp_path: Path, partition: Path
) -> None:
    hook = script(
        tmp_path / "hook",
        "trap '' TERM",
        f"(trap '' TERM; exec sleep 1000) & echo \"$! $$\" > '{tmp_path}/pids'",
        "while :; do wait; done",
    )
    started_at = time.monotonic()
    assert run(partition, hook, timeout_s=TIMEOUT_S) is False
    assert time.monotonic() - started_at < TIMEOUT_S + 10
    assert_none_runs((tmp_path / "pids").read_text())


@pytest.mark.parametrize("line", ["exit 0", "exec sleep 1000"])
@pytest.mark.usefixtures("short_grace")
def test_what_it_left_may_belong_to_another_user(
    tmp_path: Path, partition: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Such processes cannot be ended by the daemon; what the hook said counts."""
    killpg = os.killpg

    def refuse(pid: int, number: int) -> None:
        killpg(pid, signal.SIGKILL) if "sleep" in line else None
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    hook = script(tmp_path / "hook", line)
    assert run(partition, hook, timeout_s=HANG_S if line == "exit 0" else 0.3) is (line == "exit 0")


def test_its_path_holds_wherever_it_goes(
    tmp_path: Path, partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the data directory was given from where the daemon was started."""
    monkeypatch.chdir(tmp_path)
    hook = script(tmp_path / "hook", 'cd / && exec test -f "$1"')
    assert run(partition.relative_to(tmp_path), hook)


def assert_none_runs(pids: str) -> None:
    """A killed process may take a moment to be gone."""
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids.split()))


@pytest.mark.parametrize("code", [0, 5])
def test_what_it_left_in_the_background_ends_with_it(
    tmp_path: Path, partition: Path, code: int
) -> None:
    """It holds the hook's output open; nobody waits for that."""
    hook = script(
        tmp_path / "hook", f"sleep 1000 & echo $! > '{tmp_path}/pids'; echo bye; exit {code}"
    )
    assert run(partition, hook) is (code == 0)
    assert_none_runs((tmp_path / "pids").read_text())


def within(seconds: float, hook: Hook, at_last: Callable[[], None] = lambda: None) -> bool | None:
    """What the run comes to; None, and the hook killed, if it does not end in time."""
    running, results = RunningHooks(), []
    thread = threading.Thread(target=lambda: results.append(run_hook(hook, running)))
    thread.start()
    thread.join(seconds)
    is_late = thread.is_alive()
    at_last()
    running.kill()
    thread.join(HANG_S)
    return None if is_late else results[0]


ENDLESS = {
    "without an end": ["exec yes"],
    "without a line end": ["exec tr '\\0' x < /dev/zero"],
    "by a child that it leaves behind": ["yes &", "exit 0"],
}


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("name", ENDLESS)
def test_one_that_prints_and_prints_is_held_to_its_time(
    tmp_path: Path, partition: Path, name: str
) -> None:
    command = script(tmp_path / "hook", *ENDLESS[name])
    ended = within(20, Hook((str(command),), partition, VARIABLES, timeout_s=0.5))
    assert ended is not None, "its time was up, and nobody looked"


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(("line", "succeeds"), [("exec sleep 1000", False), ("exit 0", True)])
def test_output_that_is_always_there_does_not_keep_it_from_the_clock(
    tmp_path: Path, partition: Path, monkeypatch: pytest.MonkeyPatch, line: str, succeeds: bool
) -> None:
    """However quick the one who prints: what he prints comes from a file without an end."""
    start, endless = subprocess.Popen, open("/dev/zero", "rb", buffering=0)

    def start_printing(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        process = start(command, **{**options, "stdout": subprocess.DEVNULL})
        process.stdout = endless
        return process

    monkeypatch.setattr(subprocess, "Popen", start_printing)
    command = script(tmp_path / "hook", line)
    hook = Hook((str(command),), partition, VARIABLES, timeout_s=HANG_S if succeeds else 0.5)
    ended = within(20, hook, at_last=lambda: end_of(endless))
    assert ended is succeeds


def end_of(file: IO[bytes]) -> None:
    """From now on this file is at its end, for those too who are reading it."""
    if not file.closed:
        with open("/dev/null", "rb") as nothing:
            os.dup2(nothing.fileno(), file.fileno())


def test_a_stop_ends_those_under_way_and_those_that_come_later(
    tmp_path: Path, partition: Path
) -> None:
    running, results = RunningHooks(), []
    with Gate(tmp_path) as gate:
        hook = Hook((str(gate.hook),), partition, VARIABLES, HANG_S)
        thread = threading.Thread(target=lambda: results.append(run_hook(hook, running)))
        thread.start()
        started = gate.started()
        running.kill()
        thread.join(HANG_S)
        assert_none_runs(str(started.pid))
        results.append(run_hook(hook, running))
    assert results == [False, False]


# -- what it prints -----------------------------------------------------------------------------


def printed(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records]


def test_its_output_is_logged_line_by_line_and_escaped(
    tmp_path: Path, partition: Path, log: pytest.LogCaptureFixture
) -> None:
    hook = script(
        tmp_path / "hook",
        r"printf 'plain\n\033[31mred\033[0m\rover\n\377\0end\ttab\n\342\200\250sep\nno end'",
    )
    assert run(partition, hook)
    name = f"delete hook of topic app, {partition.name}: "
    assert printed(log) == [
        name + "'plain'",
        name + r"'\x1b[31mred\x1b[0m\rover'",
        name + r"'\ufffd\x00end\ttab'",
        name + r"'\u2028sep'",
        name + "'no end'",
    ]


def test_much_output_is_bounded_and_costs_no_memory(
    tmp_path: Path, partition: Path, log: pytest.LogCaptureFixture
) -> None:
    """100 MB, in lines of 1 MB."""
    line = "x" * 999
    hook = script(
        tmp_path / "hook",
        f"yes {line} | head -c 50000000",
        "head -c 50000000 /dev/zero | tr '\\0' z; echo",
        "exit 0",
    )
    assert run(partition, hook)
    assert len(log.records) <= 101
    assert max(map(len, printed(log))) < 2000
    assert "more lines" in printed(log)[-1]


def test_a_line_that_comes_in_pieces_is_one_line(
    tmp_path: Path, partition: Path, log: pytest.LogCaptureFixture
) -> None:
    with Gate(tmp_path) as gate:
        hook = script(
            tmp_path / "hook", "printf one", f"'{gate.hook}' \"$1\"", "printf ' line\\n'", "exit 0"
        )
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(run(partition, hook)))
        thread.start()
        gate.let_go(gate.started())
        thread.join(HANG_S)
    assert results == [True]
    assert [message for message in printed(log) if "line" in message] == [
        f"delete hook of topic app, {partition.name}: 'one line'"
    ]


# -- pauses -------------------------------------------------------------------------------------


PAUSES = [
    (1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0), (8, 128.0), (9, 256.0), (10, 300.0),
    (11, 300.0), (100, 300.0), (10**6, 300.0),
]  # fmt: skip


@pytest.mark.parametrize(("failures", "seconds"), PAUSES)
def test_pauses_grow_up_to_five_minutes(failures: int, seconds: float) -> None:
    assert retry_pause_s(failures) == seconds


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    """Other than those that this worker had before, such as a daemon that several tests share."""
    before = children()
    yield
    assert not children() - before


def children() -> set[str]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in listed if is_running(int(pid))}
