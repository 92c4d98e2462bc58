"""The commands and programs in the documents do what is printed below them.

`console` blocks are typed line by line into a shell, `python` blocks are run and, where a `text`
block follows, must print it. Ports 1774 and 1775 are read as those of the test's daemon.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.docs.test_docs import PAGES, SPARK_PAGE, Fence, sections
from tests.support.daemon import Daemon, running

INTERRUPTED = 130
PATIENCE_S = 60.0


class Typed(NamedTuple):
    """A line typed into a shell, and what has to appear below it."""

    line: str
    output: list[str]


def typed(fence: Fence) -> list[Typed]:
    found: list[Typed] = []
    for line in fence.lines:
        if line.startswith("$ "):
            found.append(Typed(line[2:], []))
        elif line.startswith("> ") and found[-1].line.endswith("\\"):
            found[-1] = Typed(f"{found[-1].line}\n{line[2:]}", [])
        else:
            found[-1].output.append(line)
    return found


@cache
def why_no_netcat() -> str | None:
    """Why lines with `nc -N` cannot be run here; None where they can."""
    if shutil.which("nc") is None:
        return "nc is not installed"
    help_ = subprocess.run(["nc", "-h"], capture_output=True, text=True, check=False)
    known = re.search(r"^\s*-?N\b|-\w*N", help_.stdout + help_.stderr, re.MULTILINE)
    return None if known else "this nc has no -N; install netcat-openbsd"


def with_ports(text: str, daemon: Daemon) -> str:
    """1774 and 1775 stand for the ports of this daemon."""
    text = text.replace("1774", daemon.address.rpartition(":")[2])
    return text.replace("1775", daemon.http.rpartition(":")[2])


@contextmanager
def shell(line: str, daemon: Daemon, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A shell that runs this line, and is killed where it takes too long."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", with_ports(line, daemon)],
        cwd=directory,
        env={**os.environ, "PATH": path, "LOGD_HOST": daemon.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A test run in the background ignores Ctrl-C, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        start_new_session=True,
    ) as process:
        # With all that it started: each of them holds the pipe open that is read to its end.
        timer = threading.Timer(PATIENCE_S, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()


def run_typed(one: Typed, daemon: Daemon, directory: Path) -> None:
    wanted = [line for line in one.output if line != "^C"]
    with shell(one.line, daemon, directory) as process:
        assert process.stdout is not None
        if wanted == one.output:
            got, code = process.stdout.read(), 0
        else:
            got, code = "".join(process.stdout.readline() for _ in wanted), INTERRUPTED
            process.send_signal(signal.SIGINT)
            got += process.stdout.read()
        assert matches(wanted, got), f"{one.line}\nprinted\n{got}"
        assert process.wait() == code, one.line


def matches(wanted: list[str], got: str) -> bool:
    """`...` stands for anything within a line; alone on one, for any lines."""
    pattern = ""
    for line in wanted:
        within = re.escape(line).replace(r"\.\.\.", "[^\n]*")
        pattern += "(?:[^\n]*\n)*" if line == "..." else f"{within}\n"
    return re.fullmatch(pattern, got) is not None


def run_python(program: str, daemon: Daemon, directory: Path) -> str:
    command = [sys.executable, "-c", with_ports(program, daemon)]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_line_that_does_not_end_fails(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PATIENCE_S", 0.5)
    with pytest.raises(AssertionError):
        run_typed(Typed("sleep 1000 | cat", []), daemon, tmp_path)


@pytest.mark.parametrize("blocks", sections("console"))
def test_console(blocks: list[Fence], tmp_path: Path) -> None:
    lines = [one for block in blocks for one in typed(block)]
    assert lines
    if any("| nc " in one.line for one in lines) and (reason := why_no_netcat()):
        print(reason)
        pytest.skip(reason)
    if any("curl " in one.line for one in lines) and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with running(tmp_path, "--http-host", "127.0.0.1:0") as daemon:
        for one in lines:
            run_typed(one, daemon, tmp_path)


@pytest.mark.parametrize(
    "blocks", sections("python", "text", pages=[page for page in PAGES if page != SPARK_PAGE])
)
def test_python(blocks: list[Fence], tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        printed = ""
        for block in blocks:
            if block.language == "python":
                printed = run_python(block.text, daemon, tmp_path)
            else:
                assert printed == block.text
