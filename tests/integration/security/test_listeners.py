"""Limits on who comes in and what they may make; settings that change while the daemon runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from logd import Client
from tests.integration.security.conftest import ALL, Files
from tests.integration.security.test_tokens import ask
from tests.support.daemon import HANG_S, ROOT, Daemon, dial, push, running

HTTP = ("--http-host", "127.0.0.1:0")


def hang_up(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGHUP)


# -- connections --------------------------------------------------------------------------------


def reply_of(connection: socket.socket) -> bytes:
    said = b""
    while piece := connection.recv(4096):
        said += piece
        if said.endswith(b"\n") or b"}" in said:
            break
    return said


def test_connections_per_address(tmp_path: Path) -> None:
    """They are counted over both listeners; another address is another matter."""
    with running(tmp_path, *HTTP, max_connections_per_address=3) as daemon, ExitStack() as stack:

        def connect(address: str, source: str) -> socket.socket:
            host, _, port = address.rpartition(":")
            made = socket.create_connection((host, int(port)), HANG_S, (source, 0))
            return stack.enter_context(made)

        held = [connect(daemon.address, "127.0.0.1") for _ in range(2)]
        held.append(connect(daemon.http, "127.0.0.1"))
        for one in held[:2]:
            one.sendall(b"PING\r\n")
            assert reply_of(one) == b"OK\r\n"
        held[2].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in reply_of(held[2])
        assert reply_of(connect(daemon.address, "127.0.0.1")).startswith(
            b"ERR busy too many connections from your address"
        )
        assert b" 503 " in reply_of(connect(daemon.http, "127.0.0.1"))
        other = connect(daemon.address, "127.0.0.2")
        other.sendall(b"PING\r\n")
        assert reply_of(other) == b"OK\r\n"
        held.pop(0).close()
        give_up_s = time.monotonic() + HANG_S
        while True:
            assert time.monotonic() < give_up_s
            again = connect(daemon.address, "127.0.0.1")
            again.sendall(b"PING\r\n")
            if reply_of(again) == b"OK\r\n":
                break


def test_new_connections_per_second(tmp_path: Path) -> None:
    with running(tmp_path, *HTTP, connection_rate=20) as daemon:
        host, _, port = daemon.address.rpartition(":")
        served = refused = 0
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + 2 or served + refused <= 100:
            assert time.monotonic() < begun_s + HANG_S
            with socket.create_connection((host, int(port)), HANG_S) as connection:
                connection.sendall(b"PING\r\n")
                said = reply_of(connection)
            served += said == b"OK\r\n"
            refused += said.startswith(b"ERR busy too many new connections at a time")
        took_s = time.monotonic() - begun_s
        assert 20 <= served <= 20 + 20 * took_s + 1
        assert "Traceback" not in daemon.log


# -- topics -------------------------------------------------------------------------------------


async def test_only_allowed_topics_are_made(tmp_path: Path) -> None:
    async with running(tmp_path, *HTTP, allow_topics="app-*,web") as server, dial(server) as line:
        await line.send(push("app-1", b"x\n") + push("web", b"x\n", "id=p:1"))
        await line.expect(b"OK 0 1\r\nOK 0 1\r\n")
        for request in (
            push("other", b"x\n"),
            push("web2", b"x\n", "count=1"),
            b"PUSH app\r\nx\r\n",
        ):
            assert await line.refused(request) == "forbidden"
        assert ask(server, "/topics/other", body=b"x\n").status == 403
        names = sorted(path.name for path in (server.data_dir / "topics").iterdir())
        assert names == ["app-1", "web"]


@pytest.mark.parametrize("with_tokens", [False, True])
async def test_topics_per_connection(tmp_path: Path, access_file: Path, with_tokens: bool) -> None:
    flags = ("--access-file", str(access_file)) if with_tokens else ()
    hello = f"AUTH {ALL}\r\n".encode()
    async with running(tmp_path, *flags, max_topics_per_connection=2) as server:
        for _ in range(2):
            async with dial(server) as line:
                await line.send(hello + push("a", b"x\n") * 2 + push("b", b"x\n", "count=1"))
                await line.expect(b"OK\r\n")
                for _ in range(3):
                    assert (await line.read_line()).startswith(b"OK ")
                for request in (push("c", b"x\n"), b"PUSH c\r\nx\r\n", push("c", b"x\n", "id=p:1")):
                    assert await line.refused(request) == "topic-limit"
                assert (await line.ask(push("b", b"x\n"))).head.startswith(b"OK ")
                assert await line.refused(b"READ c 0 1\r\n") == "not-found"
                await line.send(hello)  # the same one again, or another: it is this connection
                await line.expect(b"OK\r\n")
                assert await line.refused(push("c", b"x\n")) == "topic-limit"
                assert (await line.ask(push("b", b"x\n"))).head.startswith(b"OK ")
        async with dial(server) as line:
            await line.send(hello + push("c", b"x\n"))
            await line.expect(b"OK\r\nOK 0 1\r\n")


# -- the disk -----------------------------------------------------------------------------------


async def test_pushes_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    """And taken again when there is room; reads go on."""
    file = tmp_path / "logd.toml"
    file.write_text("min-free-bytes = 0\n")
    async with running(tmp_path, *HTTP, config=file) as server, dial(server) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        file.write_text(f"min-free-bytes = {10**15 - 1}\n")
        hang_up(server)
        server.wait_said("SIGHUP: reloaded; changed settings: min-free-bytes")
        for request in (push("app", b"x\n"), push("app", b"x\n", "id=p:1"), push("new", b"x\n")):
            assert await line.refused(request) == "no-space"
        answer = ask(server, "/topics/app", body=b"x\n")
        assert answer.status == 507
        assert json.loads(answer.body)["error"] == "no-space"
        assert ask(server, "/readyz").status == 503
        assert (await line.ask(b"READ app 0 1\r\n")).head.startswith(b"BATCHES 0 1 ")
        file.write_text("")
        hang_up(server)
        async with asyncio.timeout(HANG_S):
            while (await line.ask(push("app", b"y\n"))).head != b"OK 1 1":
                pass
        assert ask(server, "/readyz").status == 200
        assert not (server.data_dir / "topics" / "new").exists()


# -- a reload -----------------------------------------------------------------------------------


async def test_a_reload_takes_what_can_change_and_says_what_cannot(tmp_path: Path) -> None:
    file = tmp_path / "logd.toml"
    file.write_text("max-topics = 1\n")
    async with running(tmp_path, *HTTP, config=file) as server, dial(server) as line:
        assert (await line.ask(push("app", b"x\n"))).head == b"OK 0 1"
        assert await line.refused(push("web", b"x\n")) == "topic-limit"
        file.write_text(
            'max-topics = 2\nsyslog-topic = "other"\nfsync = "always"\nmax-cursors = 7\n'
            'http-names = ["logs.example"]\n[topics.app]\nmax-cursors = 1\npartition-bytes = 1\n'
            'fsync = "never"\n'
        )
        hang_up(server)
        server.wait_said(
            "SIGHUP: reloaded; changed settings: http-names, max-topics, max-cursors, topics"
        )
        assert "SIGHUP: syslog-topic changes at the next restart" in server.log
        assert "SIGHUP: fsync changes at the next restart" in server.log
        assert "SIGHUP: the fsync settings of topic app change at the next restart" in server.log
        assert (await line.ask(push("web", b"x\n"))).head == b"OK 0 1"
        assert (await line.ask(b"COMMIT app a 0\r\n")).head == b"OK 0 1"
        assert await line.refused(b"COMMIT app b 0\r\n") == "topic-limit"
        assert (await line.ask(push("app", b"y\n"))).head == b"OK 1 1"
        assert len(server.log_files("app")) == 2  # it has rolled
        said = await line.values(b"CONFIG")
        assert (said["max-topics"], said["fsync"]) == ("2", "interval")
        assert said["syslog-topic"] == "syslog"
        assert (await line.values(b"STATS app"))["fsync"] == "interval"
        assert ask(server, "/topics", Host="logs.example").status == 200
        assert ask(server, "/topics", Host="evil.example").status == 403


@pytest.mark.parametrize("toml", ["max-topics = 0", "max-tropics = 5", "what?", "[topics]\na = 1"])
async def test_a_wrong_reload_changes_nothing(tmp_path: Path, toml: str) -> None:
    file = tmp_path / "logd.toml"
    file.write_text("max-topics = 1\n")
    async with running(tmp_path, config=file) as server, dial(server) as line:
        before = await line.values(b"CONFIG")
        file.write_text(f"max-connections = 5\n{toml}\n")
        hang_up(server)
        server.wait_said("no setting was changed")
        assert str(file) in server.log
        assert await line.values(b"CONFIG") == before


async def test_a_reload_can_ask_for_tokens(tmp_path: Path, access_file: Path) -> None:
    """From then on nobody is served who has shown none, connected or not."""
    file = tmp_path / "logd.toml"
    file.write_text("")
    async with running(tmp_path, config=file) as server, dial(server) as old:
        assert (await old.ask(push("app", b"x\n"))).head == b"OK 0 1"
        file.write_text(f'access-file = "{access_file}"\n')
        hang_up(server)
        server.wait_said("SIGHUP: reloaded; changed settings: access-file")
        await old.expect_end()
        async with dial(server) as line:
            assert await line.refused(b"READ app 0 1\r\n") == "unauthorized"
        with Client(server.address) as client, pytest.raises(Exception, match="unauthorized"):
            client.topics()


async def test_a_reload_can_stop_asking_for_tokens(tmp_path: Path, access_file: Path) -> None:
    """Who had shown none is from then on as good as anybody, or has to come again."""
    file = tmp_path / "logd.toml"
    file.write_text(f'access-file = "{access_file}"\n')
    large = push("app", b"x" * 299_999 + b"\n")
    async with running(tmp_path, config=file) as server, dial(server) as old, dial(server) as half:
        await old.send(b"PING\r\n")
        await old.expect(b"OK\r\n")
        await half.send(b"PING\r\nPUS")
        await half.expect(b"OK\r\n")
        file.write_text("")
        hang_up(server)
        server.wait_said("SIGHUP: reloaded; changed settings: access-file")
        for offset in range(3):
            assert (await old.ask(large)).head == b"OK %d 1" % offset
        await half.expect_end()


async def test_tls_is_not_switched_by_a_reload(tmp_path: Path, pem: Files) -> None:
    file = tmp_path / "logd.toml"
    file.write_text("")
    async with running(tmp_path, config=file) as server, dial(server) as line:
        file.write_text(f'tls-cert = "{pem.server}"\n')
        hang_up(server)
        server.wait_said("TLS can be switched on and off by a restart only")
        await line.send(b"PING\r\n")
        await line.expect(b"OK\r\n")


async def test_a_reload_for_limits_on_connections(tmp_path: Path) -> None:
    file = tmp_path / "logd.toml"
    file.write_text("")
    async with running(tmp_path, config=file) as server, AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(dial(server)) for _ in range(3)]
        for line in lines:
            await line.send(b"PING\r\n")
            await line.expect(b"OK\r\n")
        file.write_text("max-connections = 2\n")
        hang_up(server)
        server.wait_said("SIGHUP: reloaded")
        async with dial(server) as refused:
            assert (await refused.read_line()).startswith(b"ERR busy ")
        await lines[0].send(b"PING\r\n")
        await lines[0].expect(b"OK\r\n")


# -- open to others -----------------------------------------------------------------------------


def started(*flags: str) -> tuple[bool, str]:
    """Does it start with these flags, and what did it say?"""
    command = [sys.executable, "-m", "logd", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said, limit = "", threading.Timer(HANG_S, process.kill)
    limit.start()
    with process, process.stderr:
        for line in process.stderr:
            said += line
            if "ready tcp=" in line:
                process.terminate()
    limit.cancel()
    return "ready tcp=" in said, said


@pytest.mark.parametrize("flag", ["--host", "--http-host", "--syslog-host"])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_other_machines_are_not_let_in_unasked(tmp_path: Path, flag: str, address: str) -> None:
    given = {"--host": "127.0.0.1:0", "--http-host": "off", "--syslog-host": "off", flag: address}
    flags = [
        "--data-dir",
        str(tmp_path / "data"),
        *(word for pair in given.items() for word in pair),
    ]
    is_ready, said = started(*flags)
    assert not is_ready
    assert f"{flag[2:]} {address} is open to other machines" in said
    assert "allow-anonymous" in said
    assert not (tmp_path / "data").exists()
    assert started(*flags, "--allow-anonymous", "yes")[0]


def test_other_machines_with_tokens_or_certificates(
    tmp_path: Path, access_file: Path, pem: Files
) -> None:
    flags = [
        "--data-dir",
        str(tmp_path / "data"),
        "--host",
        "0.0.0.0:0",
        "--http-host",
        "0.0.0.0:0",
    ]
    tls = ["--tls-cert", pem.server]
    is_ready, said = started(*flags, "--access-file", str(access_file))
    assert is_ready
    assert "are not encrypted" in said
    is_ready, said = started(*flags, *tls, "--access-file", str(access_file))
    assert is_ready
    assert "unencrypted" not in said
    assert started(*flags, *tls, "--tls-client-ca", pem.ca)[0]
    assert not started(*flags, *tls)[0]
    syslog = ["--syslog-host", "0.0.0.0:0"]
    assert not started(*flags, *syslog, *tls, "--access-file", str(access_file))[0]
    assert started(*flags, *syslog, *tls, "--tls-client-ca", pem.ca)[0]


def test_an_access_file_that_everybody_can_read_is_told(tmp_path: Path, access_file: Path) -> None:
    access_file.chmod(0o644)
    with running(tmp_path, access_file=access_file) as daemon:
        assert "every user of this machine can read" in daemon.log
