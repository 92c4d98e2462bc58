"""Syslog senders as they are: Python's own handler, silent ones, and those that go away."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from contextlib import closing
from logging.handlers import SysLogHandler
from pathlib import Path

from daemon import HANG_S, Daemon, dial, messages, running

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
