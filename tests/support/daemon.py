"""A real daemon in a process of its own, and a line to it that reads like a dialogue.

    async with running(tmp_path, fsync="always") as server, dial(server) as line:
        await line.send(b"PUSH app 6\\r\\nhello\\n")
        await line.expect(b"OK 0 1\\r\\n")

`running` also works with a plain `with`. Whatever happens in between, the process is ended by its
own id. Everything that waits here waits for a line, a reply, an exit or a condition, and gives up
after HANG_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self, cast

from logd.batch import Header, reading, scan, split_body
from tests.support.fork_server import ROOT as ROOT
from tests.support.fork_server import ForkedProcess, fork_server

HANG_S = 30.0  # only ever reached by something that would wait for ever
PAUSE_S = 0.002  # between two looks at a condition: leaves the processor to the other processes


def wait_until(holds: Callable[[], object], *, timeout_s: float = HANG_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"the condition did not hold within {timeout_s} s"
        time.sleep(PAUSE_S)


class Daemon:
    """`start`, then `stop` or `kill`, then perhaps `start` again: the data stays."""

    def __init__(self, data_dir: Path, flags: tuple[str, ...]) -> None:
        self.data_dir = data_dir
        self.address = self.http = ""
        self.process: subprocess.Popen[str] | None = None
        self.command = [sys.executable, "-m", "logd", "--data-dir", str(data_dir)]
        self.command += ["--host", "127.0.0.1:0", "--http-host", "off"]
        self.command += ["--log-format", "text", *flags]
        self.namespace: Path | None = None  # of the network, if not this process's
        self._said: list[str] = []
        self._heard = threading.Event()
        self._says = threading.Condition()
        self._listener: threading.Thread | None = None

    def start(self) -> Self:
        """Run it, and return once it is ready."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self, *, held: bool = False) -> None:
        """Run it without waiting. It is forked unless a test has given it another program."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOGD_")}
        self._said, self._heard, self.address, self.http = [], threading.Event(), "", ""
        process: subprocess.Popen[str] | ForkedProcess
        if self.command[:3] == [sys.executable, "-m", "logd"]:
            process = fork_server().fork(
                "logd", self.command[3:], environment, held=held, namespace=self.namespace
            )
        else:
            process = subprocess.Popen(
                self.command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
            )
        self.process = cast("subprocess.Popen[str]", process)
        self._listener = threading.Thread(target=self._listen, args=(process,))
        self._listener.start()

    def wait_ready(self) -> None:
        if not self._heard.wait(HANG_S) or not self.address:
            self.kill()
            raise AssertionError(f"the daemon did not start:\n{self.log}")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                with self._says:
                    self._said.append(line)
                    self._says.notify_all()
                if ready := re.search(r"ready tcp=(\S+) http=(\S+)", line):
                    self.address, self.http = ready[1], ready[2]
                    self._heard.set()
        self._heard.set()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        assert self.process is not None
        self.process.send_signal(how)
        return self._ended()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.stop(signal.SIGKILL)

    def _ended(self) -> int:
        assert self.process is not None
        assert self._listener is not None
        code = self.process.wait(HANG_S)
        self._listener.join()
        return code

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """What it said since its last start."""
        return "".join(self._said)

    def wait_said(self, text: str) -> None:
        """Wait until it has said this."""
        with self._says:
            assert self._says.wait_for(lambda: text in self.log, HANG_S), self.log

    def topic_dir(self, topic: str) -> Path:
        return self.data_dir / "topics" / topic

    def log_files(self, topic: str) -> list[Path]:
        """The topic's partitions, oldest first."""
        return sorted(self.topic_dir(topic).glob("*.log"))

    def stored(self, topic: str) -> bytes:
        """The bytes of all partitions of a topic, back to back."""
        return b"".join(path.read_bytes() for path in self.log_files(topic))

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_s(self) -> float:
        """Processor time it has used so far, its own and the kernel's for it."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if self._listener is not None:
            self._listener.join()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


def running(directory: Path, *flags: str, **settings: object) -> Daemon:
    """A daemon with its data in `directory`/data: `running(tmp_path, partition_bytes=100)`."""
    for name, value in settings.items():
        flags = (*flags, f"--{name.replace('_', '-')}", str(value))
    return Daemon(directory / "data", flags)


def rss_bytes(pid: int) -> int:
    """The memory that a process has now."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def lasting_address() -> str:
    """For a daemon that ends and comes back: nobody is given its port in between.

    It is below those that the kernel chooses from, for connections and for others' port 0.
    """
    chosen_by_kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first = int(chosen_by_kernel[0])
    while True:
        address = ("127.0.0.1", random.randrange(first // 2, first))
        with contextlib.suppress(OSError), socket.create_server(address):
            return f"{address[0]}:{address[1]}"


class Reply(NamedTuple):
    """A reply's first line without its end, and the bytes behind it."""

    head: bytes
    body: bytes = b""


class Line:
    """One connection. Nothing here answers or retries by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(HANG_S):
            await self._writer.drain()

    def send_no_more(self) -> None:
        """Shut this side; the other may still answer."""
        self._writer.write_eof()

    async def arrived(self) -> None:
        """Wait until all that was sent is in the other's hands, or at least in its kernel's."""
        connection = self._writer.get_extra_info("socket")
        async with asyncio.timeout(HANG_S):
            while any(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))):
                await asyncio.sleep(0)

    def reset(self) -> None:
        """End it as a crashed machine or a firewall does, without a goodbye."""
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def expect(self, wanted: bytes) -> None:
        """The next bytes are these; fails at the first that is not."""
        at = 0
        async with asyncio.timeout(HANG_S):
            while at < len(wanted):
                data = await self._reader.read(len(wanted) - at)
                assert data, f"the connection ended where {wanted[at:][:100]!r} was due"
                assert data == wanted[at : at + len(data)]
                at += len(data)

    async def expect_end(self) -> None:
        """The server says nothing more, and has shut its side."""
        async with asyncio.timeout(HANG_S):
            assert await self._reader.read(200) == b""

    async def read_line(self) -> bytes:
        async with asyncio.timeout(HANG_S):
            return (await self._reader.readuntil(b"\n")).removesuffix(b"\r\n")

    async def read_reply(self) -> Reply:
        head = await self.read_line()
        word, _, rest = head.partition(b" ")
        if word not in (b"BATCHES", b"TEXT"):
            return Reply(head)
        async with asyncio.timeout(HANG_S):
            return Reply(head, await self._reader.readexactly(int(rest.split()[-1])))

    async def ask(self, data: bytes) -> Reply:
        await self.send(data)
        return await self.read_reply()

    async def refused(self, data: bytes) -> str:
        """Send something that must be refused; the code of the error."""
        reply = await self.ask(data)
        word, code, text = reply.head.split(b" ", 2)
        assert word == b"ERR", reply.head
        assert text
        return code.decode()

    async def values(self, command: bytes) -> dict[str, str]:
        """What STATS or CONFIG say."""
        text = (await self.ask(command + b"\r\n")).body.decode()
        return dict(line.split(": ", 1) for line in text.splitlines())

    async def stat(self, name: str, topic: str = "") -> int:
        return int((await self.values(f"STATS {topic}".rstrip().encode()))[name])

    async def until(self, name: str, value: int, topic: str = "") -> None:
        """Wait for a counter of STATS to have this value."""
        async with asyncio.timeout(HANG_S):
            while await self.stat(name, topic) != value:
                await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def dial(server: Daemon) -> AsyncIterator[Line]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Line(reader, writer)
    finally:
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()  # the server may have stopped reading
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Batch(NamedTuple):
    """A batch as it was stored: its header, its messages, and all of its bytes."""

    header: Header
    messages: list[bytes]
    data: bytes


def batches(data: bytes) -> list[Batch]:
    """What whole batches back to back hold; every sum is checked."""
    return [
        Batch(
            found.header,
            split_body(bytes(found.body), found.header.enc),
            data[found.position : found.end],
        )
        for found in scan(reading(data), 0, len(data))
    ]


def messages(data: bytes) -> list[bytes]:
    return [message for batch in batches(data) for message in batch.messages]


def push(topic: str, body: bytes, options: str = "") -> bytes:
    """The bytes of one PUSH, its body included."""
    return f"PUSH {topic} {len(body)} {options}".rstrip().encode() + b"\r\n" + body
