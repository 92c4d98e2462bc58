"""The daemon's own log: a form for each reader, and no line that a client could forge."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from logd.net.daemon_log import DaemonJsonFormatter, JournalFormatter, TextFormatter, choose
from tests.integration.operations.manager import PYTHON, environment
from tests.support.daemon import HANG_S, ROOT

READY = re.compile(r"ready tcp=127\.0\.0\.1:[0-9]+ http=off data=\S+")
EVIL = "one\r\n2026 INFO forged \x1b[2J \x85\u2028\u202e \x7f"


def starts(tmp_path: Path, stderr: int, *flags: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [PYTHON, "-m", "logd", "--data-dir", str(tmp_path / "data"), "--host", "127.0.0.1:0"]
    return subprocess.Popen(
        [*command, "--http-host", "off", *flags], cwd=ROOT, env=environment() | variables,
        stderr=stderr,
    )  # fmt: skip


def first_line(tmp_path: Path, *flags: str) -> str:
    """What a daemon that nobody looks at says first."""
    daemon = starts(tmp_path, subprocess.PIPE, *flags)
    try:
        assert daemon.stderr is not None
        return daemon.stderr.readline().decode()
    finally:
        daemon.terminate()
        daemon.communicate(timeout=HANG_S)


def test_json_for_programs(tmp_path: Path) -> None:
    for flags in ((), ("--log-format", "json")):
        values = json.loads(first_line(tmp_path, *flags))
        assert values["level"] == "info"
        assert READY.search(values["message"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", values["time"])


@pytest.mark.parametrize("form", ["text", "json", "journal"])
def test_the_ready_line_can_be_found_in_every_form(tmp_path: Path, form: str) -> None:
    assert READY.search(first_line(tmp_path, "--log-format", form))


def test_levels_for_the_journal(tmp_path: Path) -> None:
    assert first_line(tmp_path, "--log-format", "journal").startswith("<6>ready tcp=")


def test_text_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    daemon = starts(tmp_path, theirs)
    os.close(theirs)
    with open(ours, encoding="utf-8") as terminal:
        line = terminal.readline()
        daemon.terminate()
        daemon.wait(HANG_S)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO ready tcp=", line)


def test_the_journal_is_known_by_its_file_not_by_the_variable_alone(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        status = os.fstat(stream.fileno())
        here = f"{status.st_dev}:{status.st_ino}"
        assert choose({"JOURNAL_STREAM": here}, stream) == "journal"
        assert choose({"JOURNAL_STREAM": "8:1"}, stream) == "json"
        assert choose({}, stream) == "json"
    assert choose({}, io.StringIO()) == "json"


def test_a_start_that_fails_is_one_line_in_the_form_asked_for(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    daemon = starts(tmp_path, subprocess.PIPE, "--log-format", "json")
    _, said = daemon.communicate(timeout=HANG_S)
    assert daemon.returncode == 1
    assert json.loads(said)["level"] == "critical"
    assert "data" in json.loads(said)["message"]


@pytest.mark.parametrize("formatter", [TextFormatter(), DaemonJsonFormatter(), JournalFormatter()])
def test_what_clients_send_stays_on_its_line_and_is_shown(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("logd", logging.WARNING, "", 1, "said %s", (EVIL,), None)
    line = formatter.format(record)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert "forged" in line
    if isinstance(formatter, DaemonJsonFormatter):
        assert json.loads(line)["message"] == f"said {EVIL}"


def test_a_traceback_is_whole_and_has_its_level_on_each_line() -> None:
    try:
        raise ValueError("bad\x1b[1m")
    except ValueError:
        record = logging.LogRecord("logd", 40, "", 1, "broke", (), sys.exc_info())
    lines = JournalFormatter().format(record).split("\n")
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)
    assert "\x1b" not in "".join(lines)
    assert json.loads(DaemonJsonFormatter().format(record))["exception"].startswith("Traceback")
