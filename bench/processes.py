"""Starts processes and always stops them, and selects the checkout that is measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0
RUN_TIMEOUT_S = 120.0
POLL_S = 0.001


class BenchError(Exception):
    """A row could not be measured. The text is the reason."""


_compared: Path | None = None


@contextmanager
def comparing(directory: Path) -> Iterator[None]:
    """Within it, logd and its clients are started from this checkout, and no other servers."""
    global _compared
    before, _compared = _compared, directory
    try:
        yield
    finally:
        _compared = before


def is_comparing() -> bool:
    return _compared is not None


def checkout() -> Path:
    """The checkout whose logd is measured."""
    return _compared or ROOT


def python() -> str:
    """The interpreter that runs logd and the client programs."""
    return sys.executable if checkout() == ROOT else str(checkout() / ".venv" / "bin" / "python")


def environment() -> dict[str, str]:
    """The environment of this process, without settings of the daemon under test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LOGD_")}


def run_json(command: Sequence[str | Path]) -> Mapping[str, float]:
    """Run a program that prints one line of JSON."""
    name = " ".join(Path(str(part)).name for part in command[:2])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=checkout(),
            env=environment(),
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{name} did not end within {RUN_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise BenchError(f"{name}: {_tail(done.stderr) or done.stdout.strip()}")
    values: dict[str, float] = json.loads(done.stdout)
    return values


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server with its output in `log`, since a full pipe would block it.

    `variables` replaces the environment of this process.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=checkout(),
            env=environment() if variables is None else variables,
        )
    try:
        yield process
    finally:
        _stop(process)


def wait_for(
    process: subprocess.Popen[bytes], log: Path, pattern: str, timeout_s: float = READY_TIMEOUT_S
) -> re.Match[str]:
    """Wait until `pattern` matches the output of the server."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        said = log.read_text(errors="replace")
        if match := re.search(pattern, said):
            return match
        if process.poll() is not None:
            raise BenchError(f"ended with {process.returncode} before it was ready: {_tail(said)}")
        time.sleep(POLL_S)
    raise BenchError(f"not ready within {timeout_s:.0f} s: {_tail(log.read_text())}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tail(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-3:])
