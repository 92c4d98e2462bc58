"""Files of a topic that somebody removes or replaces while the daemon runs."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.daemon import HANG_S, PAUSE_S, Line, dial, messages, push, running, wait_until

LOG = "00000000000000000000.log"


def removed_directory(topic: Path) -> None:
    shutil.rmtree(topic)


def moved_directory(topic: Path) -> None:
    topic.rename(topic.with_name("moved"))


def removed_file(topic: Path) -> None:
    (topic / LOG).unlink()


def replaced_file(topic: Path) -> None:
    shutil.copy(topic / LOG, topic / "copy")
    (topic / "copy").rename(topic / LOG)


async def until_refused(line: Line, request: bytes) -> bytes:
    """The first answer that is an error."""
    async with asyncio.timeout(HANG_S):
        while not (head := (await line.ask(request)).head).startswith(b"ERR "):
            pass
    return head


DEEDS = [removed_directory, moved_directory, removed_file, replaced_file]


@pytest.mark.parametrize("deed", DEEDS)
async def test_the_topic_is_faulted(tmp_path: Path, deed: Callable[[Path], None]) -> None:
    """Soon nothing more is acknowledged; other topics work, and a restart is possible."""
    async with running(tmp_path, fsync="never") as daemon, dial(daemon) as line:
        for topic in ("app", "other"):
            assert (await line.ask(push(topic, b"x\n"))).head == b"OK 0 1"
        deed(daemon.topic_dir("app"))
        said = await until_refused(line, push("app", b"y\n"))
        assert said.startswith(b"ERR faulted first=0 next="), said
        assert b"while the daemon was running" in said
        assert b"restart the daemon" in said
        assert await line.refused(b"PUSH app\r\nsingle\r\n") == "faulted"
        assert await line.refused(b"COMMIT app me 0\r\n") == "faulted"
        assert (await line.values(b"STATS app"))["damages"] == "1"
        assert messages((await line.ask(b"READ app 0 1\r\n")).body) == [b"x"]
        assert (await line.ask(push("other", b"y\n"))).head == b"OK 1 1"
        daemon.wait_said("topic app is faulted: ")
        assert daemon.stop() == 0
        if deed is removed_directory:
            daemon.start()
            async with dial(daemon) as again:
                assert (await again.ask(push("app", b"z\n"))).head == b"OK 0 1"


async def test_with_always_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    async with running(tmp_path, fsync="always") as daemon, dial(daemon) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        removed_directory(daemon.topic_dir("app"))
        assert await line.refused(push("app", b"y\n")) == "faulted"
        assert (await line.ask(b"READ app 0 9\r\n")).head.startswith(b"BATCHES 0 1 ")


async def test_a_file_that_is_cut(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, dial(daemon) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        os.truncate(daemon.topic_dir("app") / LOG, 1)
        daemon.wait_said("topic app is faulted: ")
        assert await line.refused(push("app", b"x\n")) == "faulted"


async def test_a_sealed_partition_that_nobody_uses(tmp_path: Path) -> None:
    async with running(tmp_path, partition_bytes=1) as daemon, dial(daemon) as line:
        for n in range(3):
            assert (await line.ask(push("app", b"x\n"))).head == b"OK %d 1" % n
        daemon.log_files("app")[1].unlink()
        daemon.wait_said("topic app is faulted: offsets 1 to 1 are damaged")
        assert await line.refused(b"READ app 1 1\r\n") == "faulted"
        assert await line.refused(push("app", b"x\n")) == "faulted"
        assert messages((await line.ask(b"READ app 2 1\r\n")).body) == [b"x"]


async def test_a_delete_hook_may_move_the_file(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    hook = tmp_path / "hook"
    hook.write_text(
        f'#!/bin/sh\nmv "$1" {tmp_path}/away\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n'
    )
    hook.chmod(0o755)
    settings = {"partition_bytes": 1, "max_partitions": 1, "delete_hook": hook}
    async with running(tmp_path, **settings) as daemon, dial(daemon) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 1 1"
        wait_until(lambda: list((tmp_path / "away").iterdir()))
        offset = 1
        for _ in range(2):  # the daemon checks the files while the hook has one
            uptime = await line.stat("uptime_s")
            while await line.stat("uptime_s") == uptime:
                await asyncio.sleep(PAUSE_S)
        (tmp_path / "go").touch()
        await line.until("first", offset, "app")
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 2 1"


@pytest.mark.parametrize("is_http", [False, True])
async def test_no_path_of_the_server_is_told(tmp_path: Path, is_http: bool) -> None:
    """Neither in a reply nor over HTTP; the daemon's log has it."""
    flags = ("--http-host", "127.0.0.1:0")
    async with running(tmp_path, *flags, partition_bytes=1) as daemon, dial(daemon) as line:
        for n in range(2):
            assert (await line.ask(push("app", b"x\n"))).head == b"OK %d 1" % n
        sealed = daemon.log_files("app")[0]
        sealed.rename(sealed.with_suffix(".away"))
        sealed.mkdir()  # so that its size is not the reason
        if is_http:
            connection = HTTPConnection(daemon.http, timeout=HANG_S)
            connection.request("GET", "/topics/app/messages?from=0&limit=1")
            said = connection.getresponse().read()
            connection.close()
        else:
            said = (await line.ask(b"READ app 0 1\r\n")).head
        assert b"daemon's log" in said, said
        assert str(tmp_path).encode() not in said
        daemon.wait_said("rejected io from 127.0.0.1: disk error: ")
        assert str(sealed) in daemon.log
