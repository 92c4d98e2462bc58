"""Pipelining, batches, errors and half-closed connections of a real daemon.

The replies to each single command are in tests/integration/compatibility.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

from logd.batch import body_sum
from tests.support.daemon import Daemon, batches, dial, messages, push, running

MODES = ["never", "interval", "batches", "always"]


@pytest.fixture(params=MODES)
def server_in_any_mode(request: pytest.FixtureRequest, tmp_path: Path) -> Daemon:
    return running(tmp_path, fsync=request.param)


# -- as people type it --------------------------------------------------------------------------


def test_netcat_is_enough(daemon: Daemon) -> None:
    if shutil.which("nc") is None:
        pytest.skip("netcat (nc, from netcat-openbsd) is not installed")
    host, port = daemon.address.split(":")
    typed = b"PUSH app\r\nhello\r\nREAD app 0 1\r\n"
    done = subprocess.run(["nc", "-N", host, port], input=typed, capture_output=True, timeout=60)
    stored = daemon.stored("app")
    assert done.stdout == b"OK 0 1\r\nBATCHES 0 1 %d\r\n%b" % (len(stored), stored)
    assert re.fullmatch(
        rb"BATCH 0 1 6 [0-9]{13} lines [0-9a-f]{16} - [0-9a-f]{8}\r\nhello\n", stored
    )


async def test_a_command_sees_the_effects_of_those_before_it(server_in_any_mode: Daemon) -> None:
    """All of it sent at once: each READ must see the PUSH before it, in every mode."""
    async with server_in_any_mode as server, dial(server) as line:
        for i in range(20):
            await line.send(b"PUSH app 2\r\nx\nREAD app %d 1\r\nTAIL app 1\r\nSTATS app\r\n" % i)
            await line.expect(b"OK %d 1\r\n" % i)
            read, tail = await line.read_reply(), await line.read_reply()
            assert read == tail
            assert read.head == b"BATCHES %d 1 %d" % (i, len(read.body))
            assert b"next: %d\n" % (i + 1) in (await line.read_reply()).body


async def test_hundreds_of_mixed_commands_are_answered_in_order(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.send(push("app", b"first\n"))
        await line.expect(b"OK 0 1\r\n")
        kinds = [
            (push("app", b"x\n"), rb"OK \d+ 1"),
            (push("app", b"y\nz\n", "count=2"), rb"OK \d+ 2"),
            (b"PUSH app\r\none line\r\n", rb"OK \d+ 1"),
            (push("app", b"x" * 70_000 + b"\n"), rb"OK \d+ 1"),
            (push("other", b"x\n"), rb"OK \d+ 1"),
            (push("../x", b"x\n"), rb"ERR bad-topic .*"),
            (push("app", b"x\n", "sum=0123456789abcdef"), rb"ERR checksum .*"),
            (push("app", zstandard.compress(b"q\n"), "enc=lines+zstd"), rb"OK \d+ 1"),
            (b"READ app 0 1\r\n", rb"BATCHES 0 1 \d+"),
            (b"READ app 0 1000000\r\n", rb"BATCHES 0 \d+ \d+"),
            (b"READ nothing 0 1\r\n", rb"ERR not-found .*"),
            (b"READ app 0 0\r\n", rb"ERR bad-request .*"),
            (b"TAIL app 2\r\n", rb"BATCHES \d+ \d+ \d+"),
            (b"READ app next 1 wait=1\r\n", rb"BATCHES \d+ 0 0"),
            (b"PING\r\n", rb"OK"),
            (b"STATS app\r\n", rb"TEXT \d+"),
            (b"TOPICS\r\n", rb"TEXT \d+"),
        ]
        order = [kinds[(i * 7 + i // 5) % len(kinds)] for i in range(500)]

        async def send() -> None:
            await line.send(b"".join(request for request, _ in order))
            line.send_no_more()

        sending = asyncio.create_task(send())  # replies are taken meanwhile: they are larger
        offset = 0
        for request, expected in order:
            reply = await line.read_reply()
            assert re.fullmatch(expected, reply.head), (request[:40], reply.head)
            if reply.head.startswith(b"OK ") and not request.startswith(b"PUSH other"):
                assert int(reply.head.split()[1]) > offset
                offset = int(reply.head.split()[1])
        await sending
        await line.expect_end()
        everything = batches(daemon.stored("app"))
        assert everything[-1].header.next > offset


# -- batches ------------------------------------------------------------------------------------


async def test_a_reply_has_the_bytes_of_the_files(tmp_path: Path) -> None:
    """Many partitions, read in many replies: put together they are the files put together."""
    async with running(tmp_path, partition_bytes=600) as server, dial(server) as line:
        for i in range(300):
            await line.send(push("app", b"message %d\n" % i * (1 + i % 7), f"id=p:{i}"))
        for _ in range(300):
            assert (await line.read_reply()).head.startswith(b"OK ")
        assert len(server.log_files("app")) > 10
        for options in (b"", b" bytes=1", b" bytes=1000", b" bytes=10000"):
            got, offset = b"", 0
            while (reply := await line.ask(b"READ app %d 100000%b\r\n" % (offset, options))).body:
                start, count, _ = map(int, reply.head.split()[1:])
                assert start == offset
                offset += count
                got += reply.body
            assert got == server.stored("app")


async def test_many_files_in_one_reply(tmp_path: Path) -> None:
    async with running(tmp_path, partition_bytes=1) as server, dial(server) as line:
        await line.send(b"".join(push("app", b"%d\n" % i, f"id=p:{i}") for i in range(400)))
        for i in range(400):
            await line.expect(b"OK %d 1\r\n" % i)
        assert len(server.log_files("app")) == 400
        got, offset = b"", 0
        while (reply := await line.ask(b"READ app %d 100000\r\n" % offset)).body:
            offset += int(reply.head.split()[2])
            got += reply.body
        assert got == server.stored("app")
        assert messages(got) == [b"%d" % i for i in range(400)]
        assert server.descriptors() < 350, "not all of the files stay open"


async def test_a_payload_with_commands_or_a_batch_in_it_is_one_message(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.send(push("app", b"x\n"))
        await line.expect(b"OK 0 1\r\n")
        evil = [b"\r\nPUSH app 2\r\nyy\r\nCLOSE\r\n", daemon.stored("app"), b"\0\r\n\r\n"]
        for i, message in enumerate(evil):
            await line.send(push("app", b"%d\n%b" % (len(message), message), "enc=sized"))
            await line.expect(b"OK %d 1\r\n" % (i + 1))
        reply = await line.ask(b"READ app 0 10\r\n")
        assert messages(reply.body) == [b"x", *evil]


async def test_compressed_batches_are_checked_and_stored_as_they_are(tmp_path: Path) -> None:
    async with running(tmp_path, max_batch_bytes=100_000) as server, dial(server) as line:
        lines, sized = zstandard.compress(b"a\nb\n"), zstandard.compress(b"1 1\n\n\0")
        await line.send(push("app", lines, "enc=lines+zstd") + push("app", sized, "enc=sized+zstd"))
        await line.expect(b"OK 0 2\r\nOK 2 2\r\n")
        first, second = batches(server.stored("app"))
        assert (first.header.enc, second.header.enc) == ("lines+zstd", "sized+zstd")
        assert first.data.endswith(lines)
        assert first.messages + second.messages == [b"a", b"b", b"\n", b"\0"]
        for body, options in (
            (zstandard.compress(b"a\nb"), "enc=lines+zstd"),
            (zstandard.compress(b"2\na"), "enc=sized+zstd"),
            (lines + lines, "enc=lines+zstd"),
            (lines[:-1], "enc=lines+zstd"),
            (lines, "enc=lines+zstd count=3"),
            (zstandard.ZstdCompressor(write_content_size=False).compress(b"a\n"), "enc=lines+zstd"),
        ):
            assert await line.refused(push("app", body, options)) == "bad-request"
        bomb = zstandard.compress(b"\n" * 50_000_000)
        assert await line.refused(push("app", bomb, "enc=lines+zstd")) == "too-large"
        assert len(batches(server.stored("app"))) == 2


async def test_what_follows_a_compressed_push_waits_for_it(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        body = zstandard.compress(b"x\n" * 1_000_000)
        for i in range(10):
            await line.send(
                push("app", body, "enc=lines+zstd") + push("app", b"y\n") + b"TAIL app 1\r\n"
            )
            offset = i * 1_000_001
            await line.expect(b"OK %d 1000000\r\nOK %d 1\r\n" % (offset, offset + 1_000_000))
            assert messages((await line.read_reply()).body) == [b"y"]


@pytest.mark.parametrize("size", [2_000_000, 2_097_152, 2_097_153, 5_000_000, 8_388_608])
async def test_large_batches(daemon: Daemon, size: int) -> None:
    async with dial(daemon) as line:
        body = b"x" * (size - 1) + b"\n"
        for options in ("", "count=1", f"sum={body_sum(body)} id=p:1"):
            await line.send(push("app", body, options) + b"PING\r\n")
            assert (await line.read_reply()).head.endswith(b" 1")
            await line.expect(b"OK\r\n")
        assert messages(daemon.stored("app")) == [body[:-1]] * 3


async def test_small_commands_behind_large_batches(daemon: Daemon) -> None:
    """A connection that was once given room for large bodies still reads what is small."""
    async with dial(daemon) as line:
        large = push("app", b"x" * 3_000_000 + b"\n")
        await line.send(large + push("app", b"y\n") * 3 + b"PUSH app\r\nz\r\nFROM nowhere\r\n")
        for i in range(5):
            await line.expect(b"OK %d 1\r\n" % i)
        assert (await line.read_line()).startswith(b"ERR unknown-command ")
        await line.expect_end()
    async with dial(daemon) as line:
        await line.send(large + push("../x", b"y\n") + large + push("app", b"y\n") + b"PING\r\n")
        line.send_no_more()
        await line.expect(b"OK 5 1\r\n")
        assert (await line.read_line()).startswith(b"ERR bad-topic ")
        await line.expect(b"OK 6 1\r\nOK 7 1\r\nOK\r\n")
        await line.expect_end()


async def test_a_large_refused_body_is_dropped(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        for _ in range(3):
            assert await line.refused(push("../x", b"x" * 5_000_000)) == "bad-topic"
        await line.send(b"PING\r\n")
        await line.expect(b"OK\r\n")


async def test_a_connection_may_live_long(daemon: Daemon) -> None:
    """Megabytes of commands that are no pushes, on one connection."""
    async with dial(daemon) as line:
        await line.send(push("app", b"x\n"))
        await line.expect(b"OK 0 1\r\n")
        for _ in range(40):
            await line.send(b"READ app next 1 bytes=1000000\r\n" * 2000)
            await line.expect(b"BATCHES 1 0 0\r\n" * 2000)


# -- errors -------------------------------------------------------------------------------------

CLOSE = [
    (b"FROB\r\n", "unknown-command"),
    (b"\r\n", "unknown-command"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "unknown-command"),
    (b"POST /log HTTP/1.1\r\nContent-Length: 6\r\n\r\n", "unknown-command"),
    (b"Host: localhost\r\n", "unknown-command"),
    (b"\x16\x03\x01\x02\x00\x01\x00\n", "unknown-command"),
    (b"PUSH app 1099511627776\r\n", "too-large"),
    (b"PUSH app 8388609\r\n", "too-large"),
    (b"PUSH app -1\r\n", "bad-request"),
    (b"PUSH app six\r\n", "bad-request"),
    (b"PUSH\r\n", "bad-request"),
    (b"STATS " + b"x" * 2000 + b"\r\n", "too-large"),
    (b"x" * 2000, "too-large"),
    (b"PUSH app\r\n" + b"x" * 65_537 + b"\r\n", "too-large"),
    (push("app", zstandard.compress(b"\n" * 10_000_000), "enc=lines+zstd"), "too-large"),
]


async def test_after_these_errors_nothing_more_runs(daemon: Daemon) -> None:
    for next_, (request, code) in enumerate(CLOSE):
        async with dial(daemon) as line:
            await line.send(push("app", b"before\n") + request + push("app", b"behind\n") * 3)
            await line.expect(b"OK %d 1\r\n" % next_)
            assert await line.refused(push("app", b"later\n")) == code, request[:100]
            await line.expect_end()
    assert messages(daemon.stored("app")) == [b"before"] * len(CLOSE)


async def test_what_is_sent_behind_close_does_not_run(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.send(push("app", b"before\n") + b"CLOSE\r\n" + push("app", b"behind\n") * 3)
        await line.expect(b"OK 0 1\r\nOK\r\n")
        await line.expect_end()
    async with dial(daemon) as line:
        await line.send(b"CLOSE\r\n" + push("app", b"behind\n") * 3 + b"PING\r\n")
        await line.expect(b"OK\r\n")
        await line.expect_end()
    async with dial(daemon) as line:
        assert messages((await line.ask(b"READ app 0 10\r\n")).body) == [b"before"]


async def test_an_error_reaches_a_client_that_is_still_sending(daemon: Daemon) -> None:
    """The answer must not be lost to a reset because the rest of the request was not read."""
    async with dial(daemon) as line:
        await line.send(b"PUSH app 99999999\r\n" + b"x" * 3_000_000)
        assert (await line.read_line()).startswith(b"ERR too-large ")
        await line.expect_end()


# -- half-closed --------------------------------------------------------------------------------

REQUESTS = push("app", b"x\n") + b"PUSH app\r\ny\r\n" + b"READ app 0 10\r\nPING\r\n"
CUT_OFF = [b"", b"PIN", b"PUSH app 10\r\nhalf", b"PUSH app\r\nhalf", b"PUSH app 5 sum=", b"\r"]


async def test_after_a_half_close_all_complete_commands_are_answered(
    server_in_any_mode: Daemon,
) -> None:
    async with server_in_any_mode as server:
        for i, rest in enumerate(CUT_OFF):
            async with dial(server) as line:
                await line.send((REQUESTS + rest).replace(b"app", b"app%d" % i))
                line.send_no_more()
                await line.expect(b"OK 0 1\r\nOK 1 1\r\n")
                assert messages((await line.read_reply()).body) == [b"x", b"y"]
                await line.expect(b"OK\r\n")
                await line.expect_end()
            assert messages(server.stored(f"app{i}")) == [b"x", b"y"]


async def test_a_half_close_behind_large_replies(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        body = b"x" * 999_999 + b"\n"
        await line.send(push("app", body) * 20 + b"READ app 0 20\r\n" * 5 + b"PING\r\n")
        line.send_no_more()
        for i in range(20):
            await line.expect(b"OK %d 1\r\n" % i)
        for _ in range(5):
            assert (await line.read_reply()).body == daemon.stored("app")
        await line.expect(b"OK\r\n")
        await line.expect_end()


async def test_a_client_that_hangs_up_in_the_middle(daemon: Daemon) -> None:
    async with dial(daemon) as other:
        for sent in (b"PUSH app 100\r\nhalf", b"PUSH app\r\nhalf", b"READ app 0 1 wait=60000"):
            async with dial(daemon) as line:
                await line.send(sent)
        await other.until("connections", 1)
        await other.send(b"READ app 0 1\r\n")
        assert (await other.read_line()).startswith(b"ERR not-found ")


async def test_a_follower_that_is_cut_off_is_forgotten(daemon: Daemon) -> None:
    async with dial(daemon) as other:
        await other.send(push("app", b"x\n"))
        await other.expect(b"OK 0 1\r\n")
        async with dial(daemon) as line:
            await line.send(b"READ app next 1 wait=60000\r\n")
            await other.until("waiting_reads", 1, "app")
            line.reset()
        await other.until("waiting_reads", 0, "app")
        await other.until("connections", 1)
