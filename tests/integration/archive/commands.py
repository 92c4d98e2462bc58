"""log-cli and its Spark in processes of their own: run to their end, or killed together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.daemon import ROOT, Daemon, wait_until

LOG_CLI = (sys.executable, "-m", "cli")
KILLED_LOG_CLI = (sys.executable, str(Path(__file__).with_name("killed_log_cli.py")))
HANG_S = 600.0  # only ever reached by something that would wait for ever: Spark starts slowly


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def log_cli(*words: object, host: str | Daemon = "127.0.0.1:1", **variables: str) -> Ran:
    """Run it to its end."""
    done = subprocess.run(
        [*LOG_CLI, *map(str, words)],
        cwd=ROOT,
        env=_environment(host) | variables,
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=HANG_S,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "\tat " not in done.stderr, done.stderr  # Java's traces
    return Ran(done.returncode, done.stdout, done.stderr)


def killed_at(when: str, below: str, nth: int, *words: object, host: Daemon) -> None:
    """Run it up to a place in the driver, see `killed_log_cli.py`."""
    process = _started([*KILLED_LOG_CLI, when, below, str(nth), *map(str, words)], host)
    _, errors = process.communicate(timeout=HANG_S)
    _end_group(process)
    assert process.returncode == -signal.SIGKILL, errors


def killed_when(
    happened: Callable[[], bool], *words: object, host: Daemon, at_latest: tuple[str, ...] = ()
) -> None:
    """Kill it, its Java and its Python workers at once, when something has happened.

    Who looks may be late: where it must not get further than a place, `at_latest` names that as
    `killed_log_cli.py` has it.
    """
    command = [*KILLED_LOG_CLI, *at_latest] if at_latest else [*LOG_CLI]
    process = _started([*command, *map(str, words)], host)
    wait_until(lambda: happened() or process.poll() is not None, timeout_s=HANG_S)
    assert happened(), process.communicate()
    _end_group(process)
    process.communicate(timeout=HANG_S)


def _started(command: list[str], host: Daemon) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=ROOT, env=_environment(host), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it has ended


def _environment(host: str | Daemon) -> dict[str, str]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith("LOGD_")}
    paths = f"{ROOT}{os.pathsep}{variables.get('PYTHONPATH', '')}"
    address = host if isinstance(host, str) else host.address
    return variables | {"LOGD_HOST": address, "PYTHONPATH": paths}
