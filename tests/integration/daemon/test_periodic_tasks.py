"""The once-per-second work of a real daemon goes on when a system call fails."""

from __future__ import annotations

import json
import os
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

from tests.support.daemon import HANG_S, Daemon, dial, push, running

HTTP = ("--http-host", "127.0.0.1:0")

# Runs the daemon with a statvfs that fails while the file `fails` is there.
FAILING = """
import errno, os, sys
from pathlib import Path
from logd.storage import disk
from logd.__main__ import main

real, fails = disk.free_bytes, Path(sys.argv.pop(1))

def free_bytes(path):
    if fails.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
    return real(path)

disk.free_bytes = free_bytes
main()
"""


def get(daemon: Daemon, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(daemon.http, timeout=HANG_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wait_for_status(daemon: Daemon, status: int) -> list[str]:
    give_up_s = time.monotonic() + HANG_S
    while True:
        found, body = get(daemon, "/readyz")
        if found == status:
            reasons: list[str] = json.loads(body)["reasons"]
            return reasons
        assert time.monotonic() < give_up_s, body


def failures(daemon: Daemon) -> int:
    status, page = get(daemon, "/metrics")
    assert status == 200
    name = 'logd_housekeeping_failures_total{task="free space"} '
    return int(float(page.decode().partition(name)[2].split("\n")[0]))


async def test_a_failing_statvfs(tmp_path: Path) -> None:
    """It is reported, and the other tasks go on: idle connections are still closed."""
    fails = tmp_path / "fails"
    daemon = running(tmp_path, *HTTP, idle_timeout="1s")
    daemon.command = [sys.executable, "-c", FAILING, str(fails), *daemon.command[3:]]
    with daemon:
        assert failures(daemon) == 0
        fails.touch()
        assert wait_for_status(daemon, 503)[0].startswith("housekeeping: free space has failed")
        assert str(tmp_path) not in get(daemon, "/readyz")[1].decode()
        assert failures(daemon) > 0
        assert get(daemon, "/_cat/health")[0] == 503
        async with dial(daemon) as idle:
            await idle.expect_end()
        async with dial(daemon) as line:
            assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        os.kill(daemon.pid, 1)
        daemon.wait_said("SIGHUP: reloaded")
        fails.unlink()
        assert wait_for_status(daemon, 200) == []
        daemon.wait_said("housekeeping: free space works again")
        assert daemon.log.count("housekeeping: free space failed") == 1
