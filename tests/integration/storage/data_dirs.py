"""Whole data directories with the small log in them, log-cli on them, and waits for a daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.integration.storage.small_log import TOPIC, Files, State, read_files
from tests.support.byte_sweep import Copy
from tests.support.daemon import HANG_S, ROOT, Daemon, Line, wait_until
from tests.support.daemon import push as push_bytes
from tests.support.topic_loop import Loop, batch_of, close, create, push

OTHER = [b"first of the other", b"second of the other"]


def data_dir(tmp_path: Path, state: State) -> Path:
    """A data directory with the small log as topic `app`, and a sound topic `other`."""
    data = tmp_path / "data"
    Copy(data / "topics" / TOPIC, state)
    loop = Loop()
    other = create(data / "topics" / "other", loop)
    push(other, loop, batch_of(OTHER))
    close(other, loop)
    (data / "lock").touch()
    return data


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def log_cli(*arguments: str | Path, **variables: str) -> Ran:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOGD_")}
    done = subprocess.run(
        [sys.executable, "-m", "cli", *map(str, arguments)],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        encoding="utf-8",
        errors="backslashreplace",
        timeout=HANG_S,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@contextmanager
def unchanged(directory: Path) -> Iterator[None]:
    before = snapshot(directory)
    yield
    assert snapshot(directory) == before


def snapshot(directory: Path) -> tuple[Files, list[tuple[str, int, int]]]:
    """Contents, and of everything the inode and the time of the last change."""
    paths = sorted(directory.rglob("*"))
    return read_files(directory), [
        (str(path), path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths
    ]


# -- waiting for a daemon -----------------------------------------------------------------------


async def fill(line: Line, topic: str, count: int, body: bytes = b"message\n") -> None:
    """One partition each, if partition-bytes is 1."""
    for _ in range(count):
        assert (await line.ask(push_bytes(topic, body))).head.startswith(b"OK ")


def wait_for_files(server: Daemon, left: dict[str, int]) -> None:
    """Wait until each topic has so many files. They are deleted shortly after the partitions."""
    wait_until(lambda: {t: len(server.log_files(t)) for t in left} == left)
