"""FOLLOW over TLS: nothing goes directly to a socket, and slow clients use a bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.integration.protocol.test_follow import push_one, read_until
from tests.integration.security.conftest import Files
from tests.support.daemon import Daemon, Line, running

MESSAGE = b"x" * 20_000 + b"\n"


@asynccontextmanager
async def dial_tls(server: Daemon, pem: Files) -> AsyncIterator[Line]:
    host, _, port = server.address.rpartition(":")
    context = ssl.create_default_context(cafile=pem.ca)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_followers_over_tls(tmp_path: Path, pem: Files) -> None:
    async with running(tmp_path, tls_cert=pem.server) as server, AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(dial_tls(server, pem)) for _ in range(22)]
        other, first, *rest = lines
        await push_one(other)
        for line in rest:
            await line.send(b"FOLLOW app next\r\n")
        await first.send(b"FOLLOW app first bytes=100\r\n")
        await other.until("followers", 21, "app")
        await read_until(first, 1)
        for n in range(1, 50):
            await push_one(other, body=b"%d\n" % n if n % 5 else MESSAGE * 10)
            expected = 1 if n % 5 else 10
            next_ = await other.stat("next", "app")
            for line in (first, *rest):
                assert len(await read_until(line, next_, next_ - expected)) == expected
        for line in (first, *rest):
            await line.send(b"PING\r\n")
            await line.expect(b"END %d\r\nOK\r\n" % next_)
        assert await other.stat("followers", "app") == 0


async def test_stalled_followers_over_tls(tmp_path: Path, pem: Files) -> None:
    """What they have not read is on the disk, except for a bounded part. Later they get it all."""
    count, stalled_count = 1000, 5
    async with running(tmp_path, tls_cert=pem.server) as server, AsyncExitStack() as stack:
        other = await stack.enter_async_context(dial_tls(server, pem))
        await push_one(other)
        lines = [
            await stack.enter_async_context(dial_tls(server, pem)) for _ in range(stalled_count + 1)
        ]
        for line in lines:
            await line.send(b"FOLLOW app next\r\n")
        await other.until("followers", len(lines), "app")
        reading, *stalled = lines
        before = server.rss_bytes()
        for n in range(1, count):
            await push_one(other, body=b"%d " % n + MESSAGE)
            assert len(await read_until(reading, n + 1, n)) == 1
        grown = server.rss_bytes() - before
        print(f"bytes stored: {count * len(MESSAGE)}, memory grown by: {grown}")
        assert grown < 8 << 20
        for line in stalled:
            found = await read_until(line, count, 1)
            assert [one.split(b" ")[0] for one in found] == [b"%d" % n for n in range(1, count)]
            await line.send(b"PING\r\n")
            await line.expect(b"END %d\r\nOK\r\n" % count)
