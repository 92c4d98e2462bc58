"""Every kind of client, with a token and over TLS: one Endpoint is all that they need."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logd import Client, ConnectionLost, Endpoint, LogdHandler, Reader, TopicsReader, Writer, aio
from logd.errors import Forbidden, Unauthorized
from tests.integration.clients.aio_kinds import Kind, each, on_each, opened, run
from tests.integration.security.conftest import ALL, READER, WRITER, WRONG, Files, tells_no_token
from tests.support.daemon import HANG_S, ROOT, Daemon, running


@pytest.fixture
def daemon(tmp_path: Path, pem: Files, access_file: Path) -> Iterator[Daemon]:
    with running(tmp_path, tls_cert=pem.server, access_file=access_file) as started:
        yield started
        started.stop()
        tells_no_token(started.log)


@pytest.fixture
def reach(daemon: Daemon, pem: Files) -> Callable[[str | None], Endpoint]:
    return lambda token: Endpoint(f"tls://{daemon.address}", token=token, ca=pem.ca)


Reach = Callable[[str | None], Endpoint]


def stored(reach: Reach, topic: str) -> list[bytes]:
    with Reader(reach(ALL), topic) as reader:
        return [message.value for message in reader]


def test_blocking_ones(reach: Reach) -> None:
    with Client(reach(WRITER)) as client:
        client.push("app-1", [b"one"])
    with Writer(reach(WRITER), "app-1") as writer:
        writer.write(b"two")
    with Reader(reach(READER), "app-1") as reader:
        assert [message.value for message in reader] == [b"one", b"two"]
    with TopicsReader(reach(READER), ["app-1"]) as reader_of_several:
        assert [message.value for message in reader_of_several] == [b"one", b"two"]


@on_each
def test_a_follower(reach: Reach, kind: Kind) -> None:
    """Small replies and large ones, to a program that leaves them for some turns of its loop."""
    sizes = [*([10] * 300), *([700_000] * 20), *([10] * 300)]

    async def scenario(kind: Kind) -> list[int]:
        reader = kind.Reader(reach(READER), "app-1", follow=True, until=len(sizes))
        found = []
        async with opened(reader):
            async for message in each(reader):
                found.append(len(message.value))
                for _ in range(3):
                    await asyncio.sleep(0)
        return found

    with Client(reach(WRITER)) as client:
        for size in sizes:
            client.push("app-1", [b"x" * size])
    assert run(kind, scenario) == sizes


def test_a_reader_with_a_cursor(reach: Reach) -> None:
    with Client(reach(ALL)) as client:
        client.push("app-1", [b"%d" % n for n in range(10)])
    for first in (0, 5):
        with Reader(reach(READER), "app-1", cursor="mine", limit=5) as reader:
            assert [message.offset for message in reader] == list(range(first, first + 5))
            reader.commit()


async def test_asyncio_ones(reach: Reach) -> None:
    async with aio.Client(reach(WRITER)) as client:
        await client.push("app-1", [b"one"])
    async with aio.Writer(reach(WRITER), "app-1") as writer:
        await writer.write(b"two")
    async with aio.Reader(reach(READER), "app-1") as reader:
        assert [message.value async for message in reader] == [b"one", b"two"]


def test_the_handler(reach: Reach) -> None:
    logger = logging.getLogger("security.test")
    handler = LogdHandler(reach(WRITER), "app-log")
    logger.addHandler(handler)
    try:
        logger.warning("hello")
        handler.flush()
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert b"hello" in stored(reach, "app-log")[0]


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, WRONG])
async def test_every_kind_hears_that_it_is_unauthorized(reach: Reach, token: str | None) -> None:
    target = reach(token)
    with pytest.raises(Unauthorized), Client(target) as client:
        client.topics()
    with pytest.raises(Unauthorized):
        Writer(target, "app-1")
    with pytest.raises(Unauthorized), Reader(target, "app-1", patience_s=1) as reader:
        list(reader)
    with pytest.raises(Unauthorized):
        async with aio.Client(target) as other:
            await asyncio.gather(*[other.topics() for _ in range(3)])
    with pytest.raises(Unauthorized):
        async with aio.Writer(target, "app-1"):
            pass
    with pytest.raises(Unauthorized):
        async with aio.Reader(target, "app-1", patience_s=1) as follower:
            [message async for message in follower]


async def test_every_kind_hears_that_it_is_forbidden(reach: Reach) -> None:
    with Client(reach(ALL)) as client:
        client.push("app-1", [b"one"])
    with pytest.raises(Forbidden), Writer(reach(READER), "app-1") as writer:
        writer.write(b"two")
    with pytest.raises(Forbidden), Reader(reach(WRITER), "app-1", patience_s=1) as reader:
        list(reader)
    with pytest.raises(Forbidden):
        await written(reach(READER))
    assert stored(reach, "app-1") == [b"one"]


async def written(target: Endpoint) -> None:
    async with aio.Writer(target, "app-1") as writer:
        await writer.write(b"two")


def test_a_connection_goes_on_after_a_forbidden_command(reach: Reach) -> None:
    with Client(reach(READER)) as client:
        with pytest.raises(Forbidden):
            client.push("app-1", [b"x"])
        client.ping()


# -- tokens in files, and Endpoints that travel -------------------------------------------------


def test_a_token_file_is_read_for_each_connection(
    reach: Reach, tmp_path: Path, daemon: Daemon, pem: Files
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{WRONG}\n")
    target = Endpoint(f"tls://{daemon.address}", token_file=str(file), ca=pem.ca)
    with pytest.raises(Unauthorized), Client(target) as client:
        client.topics()
    file.write_text(f"{ALL}\n")
    with Client(target) as client:
        client.topics()
    file.unlink()
    with pytest.raises(Unauthorized, match="cannot read the token in"):
        Client(target)
    file.write_text("two words")
    with pytest.raises(Unauthorized, match="one word"):
        Client(target)


def test_an_endpoint_travels_to_another_process(reach: Reach) -> None:
    """As to a Spark worker."""
    code = (
        "import pickle, sys; from logd import Client\n"
        "with Client(pickle.load(sys.stdin.buffer)) as client: client.push('app-1', [b'far'])"
    )
    command = [sys.executable, "-c", code]
    subprocess.run(command, input=pickle.dumps(reach(ALL)), cwd=ROOT, check=True, timeout=HANG_S)
    assert stored(reach, "app-1") == [b"far"]


def test_what_an_endpoint_cannot_be() -> None:
    for wrong in (
        {"token": ALL, "token_file": "x"},
        {"key": "x"},
        {"ca": "x"},
        {"address": ("tls://a", "b"), "ca": "x"},
        {"address": "http://a"},
    ):
        with pytest.raises(ValueError):
            Client(Endpoint(**wrong))
    assert ALL not in repr(Endpoint(token=ALL))


def test_certificates_that_are_not_there(daemon: Daemon) -> None:
    with pytest.raises(ConnectionLost, match=r"cannot use /nowhere\.pem"):
        Client(Endpoint(f"tls://{daemon.address}", ca="/nowhere.pem"))


# -- log-cli ------------------------------------------------------------------------------------


class Tool:
    def __init__(self, daemon: Daemon, pem: Files) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LOGD_")}
        self.environment = clean | {"LOGD_HOST": f"tls://{daemon.address}", "LOGD_CA": pem.ca}

    def __call__(self, *words: str, **variables: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "cli", *words], cwd=ROOT, capture_output=True, text=True,
            env=self.environment | variables, timeout=HANG_S,
        )  # fmt: skip
        tells_no_token(done.stdout + done.stderr)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def tool(daemon: Daemon, pem: Files) -> Tool:
    return Tool(daemon, pem)


def test_the_tool(tool: Tool, tmp_path: Path, pem: Files, daemon: Daemon) -> None:
    file = tmp_path / "token"
    file.write_text(ALL)
    given = {"LOGD_TOKEN_FILE": str(file)}
    assert tool("write", "app-1", "one", LOGD_TOKEN=ALL)[0] == 0
    assert tool("--token-file", str(file), "write", "app-1", "two")[0] == 0
    assert tool("read", "app-1", **given)[1] == "one\ntwo\n"
    assert tool("tail", "app-1", "-n", "1", **given)[1] == "two\n"
    for command in (("topics",), ("stats",), ("stats", "app-1"), ("ping",)):
        assert tool(*command, **given)[0] == 0
    bench = ("bench", "app-2", "--messages", "100", "--connections", "2", "--read", "-q")
    assert tool(*bench, **given)[0] == 0
    address = ("--host", f"tls://{daemon.address}", "--ca", pem.ca, "--token-file", str(file))
    assert tool(*address, "read", "app-1", LOGD_HOST="127.0.0.1:1", LOGD_CA="")[0] == 0


def test_the_tool_is_refused(tool: Tool, pem: Files) -> None:
    code, _, said = tool("read", "app-1")
    assert (code, "--token-file" in said) == (2, True)
    code, _, said = tool("write", "app-1", "x", LOGD_TOKEN=READER)
    assert (code, "forbidden" in said) == (2, True)
    code, _, said = tool("ping", LOGD_CA=pem.others_ca)
    assert (code, "not trusted" in said) == (1, True)
    assert tool("ping", LOGD_TOKEN=WRONG)[0] == 2
    assert tool("ping")[0] == 0  # anybody may


def test_the_forwarder(tool: Tool, tmp_path: Path, reach: Reach) -> None:
    log = tmp_path / "some.log"
    log.write_text("one\ntwo\n")
    state = ("--state-dir", str(tmp_path / "state"))
    words = ("forward", str(log), "--topic", "app-files", "--once", *state)
    code, _, said = tool(*words, LOGD_TOKEN=WRITER)
    assert code == 0, said
    assert stored(reach, "app-files") == [b"one", b"two"]


def test_completion_asks_with_the_token(tool: Tool, reach: Reach) -> None:
    with Client(reach(ALL)) as client:
        client.push("app-1", [b"x"])
    asked = {
        "_LOG_CLI_COMPLETE": "complete_bash",
        "COMP_WORDS": "log-cli read app",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cli"], cwd=ROOT, capture_output=True, text=True,
        env=tool.environment | asked | {"LOGD_TOKEN": ALL}, timeout=HANG_S,
    )  # fmt: skip
    assert "app-1" in done.stdout


def test_a_writer_whose_token_comes_later(
    reach: Reach, daemon: Daemon, tmp_path: Path, pem: Files
) -> None:
    """It is patient: what could not be stored yet is, once the token is right."""
    file = tmp_path / "token"
    file.write_text(WRONG)
    target = Endpoint(f"tls://{daemon.address}", token_file=str(file), ca=pem.ca)
    with Writer(target, "app-1", connect="later", patience_s=HANG_S) as writer:
        writer.write(b"patient")
        with contextlib.suppress(TimeoutError):
            writer.flush(timeout_s=0.3)
        file.write_text(WRITER)
        writer.flush(timeout_s=HANG_S)
    assert stored(reach, "app-1") == [b"patient"]
