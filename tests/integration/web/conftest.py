"""A daemon with both listeners, and curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.daemon import HANG_S, Daemon, running


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class Curl:
    """`curl("/topics", "-H", "Accept: …")`, with a body on its standard input if there is one."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def command(self, path: str, *options: str) -> list[str]:
        url = f"http://{self.daemon.http}{path}"
        quiet = ["--silent", "--show-error", "--globoff", "--max-time", str(HANG_S)]
        return ["curl", *quiet, *options, url]

    def __call__(self, path: str, *options: str, body: bytes | None = None) -> Answer:
        if body is not None:
            options = ("--data-binary", "@-", *options)
        command = self.command(path, "--include", "-H", "Expect:", *options)
        done = subprocess.run(command, input=body, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return Answer(int(first.split(" ")[1]), headers, rest)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path, "--http-host", "127.0.0.1:0") as started:
        yield started


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Shared by tests whose requests must be refused: nothing is ever stored in it."""
    with running(tmp_path_factory.mktemp("empty"), "--http-host", "127.0.0.1:0") as started:
        yield started


@pytest.fixture
def curl(daemon: Daemon) -> Curl:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here; `make packages` installs it")
    return Curl(daemon)
