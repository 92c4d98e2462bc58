"""What the daemon's log says about requests that it rejects, over each protocol."""

from __future__ import annotations

import os
import signal
from http.client import HTTPConnection
from pathlib import Path

from tests.support.daemon import HANG_S, Daemon, dial, push, running

HTTP = ("--http-host", "127.0.0.1:0")


def request(daemon: Daemon, path: str, body: bytes | None = None) -> int:
    connection = HTTPConnection(daemon.http, timeout=HANG_S)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def reload(daemon: Daemon, file: Path, settings: str) -> None:
    file.write_text(settings)
    os.kill(daemon.pid, signal.SIGHUP)


async def test_over_tcp_and_http(tmp_path: Path) -> None:
    async with running(tmp_path, *HTTP, max_topics=1) as daemon, dial(daemon) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        for _ in range(20):
            assert await line.refused(b"READ ../x 0 1\r\n") == "bad-topic"
            assert await line.refused(push("other", b"x\n")) == "topic-limit"
        assert request(daemon, "/topics/app/messages?from=99") == 416
        assert request(daemon, "/topics/app", b"no line end") == 200
        assert request(daemon, "/nowhere%0aready?token=secret") == 404
        assert request(daemon, "/log", push("a/b", b"x\n")) == 200
        async with dial(daemon) as other:
            assert await other.refused(b"a-token-for-nobody\r\n") == "unknown-command"
        daemon.stop()
    rejected = [line.split(" ", 3)[2:] for line in daemon.log.splitlines() if " rejected " in line]
    assert [" ".join(words) for words in rejected] == [
        "WARNING rejected bad-topic from 127.0.0.1: a topic is 1 to 128 of A-Z a-z 0-9 . _ - and"
        " starts with a letter or a digit",
        "WARNING rejected topic-limit from 127.0.0.1: the limit of 1 topics is reached;"
        " raise max-topics",
        "INFO rejected out-of-range from 127.0.0.1: first=0 next=1",
        r"WARNING rejected http-404 from 127.0.0.1: GET /nowhere\nready",
        "WARNING rejected unknown-command from 127.0.0.1",
    ]
    assert "token" not in daemon.log


async def test_the_level_can_change(tmp_path: Path) -> None:
    file = tmp_path / "logd.toml"
    file.write_text("")
    async with running(tmp_path, config=file) as daemon, dial(daemon) as line:
        assert await line.refused(b"READ nope 0 1\r\n") == "not-found"
        daemon.wait_said("rejected not-found")
        reload(daemon, file, 'log-level = "error"\n')
        while (await line.values(b"CONFIG"))["log-level"] != "error":
            pass
        assert await line.refused(b"READ ../x 0 1\r\n") == "bad-topic"
        reload(daemon, file, 'log-level = "debug"\n')
        daemon.wait_said("SIGHUP: reloaded; changed settings: log-level")
        async with dial(daemon) as other:
            assert await other.refused(b"TAIL nope 0\r\n") == "bad-request"
        daemon.wait_said("DEBUG connection from 127.0.0.1 opened; 2 are open")
        daemon.wait_said("rejected bad-request")
        assert "bad-topic" not in daemon.log
