"""Syslog senders as they are: Python's own handler, silent ones, and those that go away."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import socket
from contextlib import ExitStack, closing
from logging.handlers import SysLogHandler
from pathlib import Path

from tests.support.daemon import HANG_S, Daemon, dial, messages, running

SYSLOG = ("--syslog-host", "127.0.0.1:0")
_SAID = re.compile(r"syslog at \S+:([0-9]+)")


def syslog_port(daemon: Daemon) -> int:
    said = _SAID.search(daemon.log)
    assert said is not None
    return int(said[1])


async def test_the_handler_of_python(tmp_path: Path) -> None:
    """It ends records with NUL; each is stored while the connection stays open."""
    texts = [f"record {n}" if n % 3 else f"record {n}\nTraceback:\n  line" for n in range(1, 27)]
    async with running(tmp_path, *SYSLOG, fsync="never") as daemon, dial(daemon) as line:
        address = ("127.0.0.1", syslog_port(daemon))
        with closing(SysLogHandler(address, socktype=socket.SOCK_STREAM)) as handler:
            for text in texts:
                handler.handle(logging.makeLogRecord({"msg": text, "levelname": "INFO"}))
            async with asyncio.timeout(HANG_S):
                while (await line.ask(b"READ syslog 25 1 wait=1000\r\n")).head.startswith(b"ERR"):
                    pass
        assert messages(daemon.stored("syslog")) == [f"<14>{text}".encode() for text in texts]


def connected(daemon: Daemon, stack: ExitStack) -> socket.socket:
    address = ("127.0.0.1", syslog_port(daemon))
    return stack.enter_context(socket.create_connection(address, HANG_S))


def grow(daemon: Daemon, limit_bytes: int) -> None:
    """No file of the daemon may grow past this; -1 for any size."""
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


async def test_silent_senders_leave_room_for_others(tmp_path: Path) -> None:
    async with running(tmp_path, *SYSLOG, max_connections=50) as daemon:
        with ExitStack() as stack:
            silent = [connected(daemon, stack) for _ in range(50)]
            async with dial(daemon) as line:
                await line.until("connections", 26)
                daemon.wait_said("rejected busy from 127.0.0.1: too many syslog connections")
            for one in silent[25:]:
                assert one.recv(1) == b""


async def test_who_never_sends_a_record_is_closed(tmp_path: Path) -> None:
    """One who has sent a record may be silent, until its place is needed."""
    settings = {"max_connections": 8, "idle_timeout": "1s"}
    async with running(tmp_path, *SYSLOG, **settings) as daemon:
        with ExitStack() as stack:
            first = connected(daemon, stack)
            first.sendall(b"<13>first\n")
            silent, half = connected(daemon, stack), connected(daemon, stack)
            half.sendall(b"<13>half a record")
            assert (silent.recv(1), half.recv(1)) == (b"", b"")
            first.sendall(b"<13>second\n")
            async with dial(daemon) as line, asyncio.timeout(HANG_S):
                while not (await line.ask(b"READ syslog 1 1\r\n")).head.startswith(b"BATCHES 1 1"):
                    pass
            others = [connected(daemon, stack) for _ in range(3)]
            for one in others:
                one.sendall(b"<13>other\n")
            assert first.recv(1) == b""
        assert messages(daemon.stored("syslog"))[:2] == [b"<13>first", b"<13>second"]


async def test_a_full_disk_and_senders_that_disconnect(tmp_path: Path) -> None:
    """Their places are free at once, the log stays short, and nothing of few of them is lost."""
    count = 20
    async with running(tmp_path, *SYSLOG, max_connections=100) as daemon, dial(daemon) as line:
        grow(daemon, 0)
        with ExitStack() as stack:
            for n in range(count):
                connected(daemon, stack).sendall(b"<13>record %d\n" % n)
            await line.until("connections", 1 + count)
            daemon.wait_said("rejected no-space from 127.0.0.1")
        await line.until("connections", 1)
        assert len(daemon.log.splitlines()) < 6
        grow(daemon, resource.RLIM_INFINITY)
        async with asyncio.timeout(HANG_S):
            while (await line.ask(b"READ syslog %d 1\r\n" % (count - 1))).head.startswith(b"ERR"):
                pass
        stored = messages(daemon.stored("syslog"))
        assert sorted(stored) == sorted(b"<13>record %d" % n for n in range(count))


async def test_what_is_kept_of_senders_that_disconnect_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, *SYSLOG) as daemon, dial(daemon) as line:
        grow(daemon, 0)
        with ExitStack() as stack:
            for n in range(100):
                connected(daemon, stack).sendall(b"<13>record %d\n" % n)
            await line.until("connections", 101)
        await line.until("connections", 1)
        async with asyncio.timeout(HANG_S):
            while daemon.descriptors() > 100:
                await line.ask(b"PING\r\n")
        grow(daemon, resource.RLIM_INFINITY)
        async with asyncio.timeout(HANG_S):
            while not (await line.ask(b"READ syslog 63 1\r\n")).head.startswith(b"BATCHES"):
                pass
        assert len(messages(daemon.stored("syslog"))) == 64
