"""Tokens: who shows none, a wrong one, or one without the right, over both listeners."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logd import Client
from logd.web.server_sent_events import KEEP_ALIVE_MS
from logd.wire.addresses import ConnectionLost
from tests.integration.security.conftest import (
    ACCESS,
    ALL,
    AUDITOR,
    READER,
    WRITER,
    WRONG,
    at,
    tells_no_token,
)
from tests.support.daemon import HANG_S, ROOT, Daemon, Line, dial, push, running

REQUESTS = {
    "PUSH": push("app-1", b"x\n"),
    "PUSH with an id": push("app-1", b"x\n", "id=p:1"),
    "PUSH of a line": b"PUSH app-1\r\nx\r\n",
    "READ": b"READ app-1 0 1\r\n",
    "TAIL": b"TAIL app-1 1\r\n",
    "PARTITIONS": b"PARTITIONS app-1\r\n",
    "CURSOR": b"CURSOR app-1\r\n",
    "COMMIT": b"COMMIT app-1 c 0\r\n",
    "STATS of a topic": b"STATS app-1\r\n",
    "TOPICS": b"TOPICS\r\n",
    "STATS": b"STATS\r\n",
    "CONFIG": b"CONFIG\r\n",
    "COMMIT to remove": b"COMMIT app-1 gone -\r\n",
    "PUSH elsewhere": push("other", b"x\n"),
    "READ elsewhere": b"READ other 0 1\r\n",
}
PUSHES = {"PUSH", "PUSH with an id", "PUSH of a line"}
READS = {"READ", "TAIL", "PARTITIONS", "CURSOR", "COMMIT"}
ANY = {"TOPICS", "STATS"}
MAY = {
    ALL: set(REQUESTS),
    WRITER: PUSHES | ANY | {"STATS of a topic"},
    READER: READS | ANY | {"STATS of a topic"},
    AUDITOR: ANY | {"CONFIG", "COMMIT to remove"},
}


def fill(daemon: Daemon) -> None:
    with Client(at(daemon, ALL)) as client:
        for topic in ("app-1", "other"):
            client.push(topic, [b"one", b"two"])
        client.commit("app-1", "gone", 1)


async def login(line: Line, token: str) -> None:
    await line.send(f"AUTH {token}\r\n".encode())
    await line.expect(b"OK\r\n")


@pytest.mark.parametrize("token", MAY)
async def test_what_each_may_do(guarded: Daemon, token: str) -> None:
    fill(guarded)
    async with dial(guarded) as line:
        await login(line, token)
        for name, request in REQUESTS.items():
            head = (await line.ask(request)).head
            allowed = not head.startswith(b"ERR forbidden ")
            assert allowed == (name in MAY[token]), (name, head)
            assert allowed or token.encode() not in head
        await line.send(b"PING\r\n")
        await line.expect(b"OK\r\n")


async def test_topics_that_one_may_not_see_are_not_listed(guarded: Daemon) -> None:
    fill(guarded)
    for token, seen in ((ALL, 2), (READER, 1), (WRITER, 1), (AUDITOR, 0)):
        with Client(at(guarded, token)) as client:
            assert len(client.topics()) == seen


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_without_a_token_nothing_but_a_few_words(guarded: Daemon, request_: bytes) -> None:
    async with dial(guarded) as line:
        await line.send(b"PING\r\nHELP\r\n")
        await line.expect(b"OK\r\n")
        assert (await line.read_reply()).head.startswith(b"TEXT ")
        await line.send(request_ + f"AUTH {ALL}\r\n".encode() + push("app-1", b"behind\n"))
        assert (await line.read_line()).startswith(b"ERR unauthorized ")
        await line.expect_end()
    with Client(at(guarded, ALL)) as client:
        assert client.topics() == []


async def test_a_wrong_token_ends_the_connection(guarded: Daemon) -> None:
    for word in (WRONG, ALL[:-1], ALL + "x", ALL.upper(), "x" * 900, "\x1b[31m", ""):
        async with dial(guarded) as line:
            await line.send(f"AUTH {word}\r\n".encode() + push("app-1", b"behind\n"))
            reply = await line.read_line()
            assert reply.startswith(b"ERR unauthorized ")
            assert not word or word.encode() not in reply
            await line.expect_end()
    with Client(at(guarded, ALL)) as client:
        assert client.topics() == []
    guarded.wait_said(
        "rejected unauthorized from 127.0.0.1: the access file does not contain this token"
    )


async def test_a_token_and_pushes_in_one_piece(guarded: Daemon) -> None:
    """No round trip is spent on it, whatever the piece ends with."""
    rest = push("app-1", b"y\n") + b"READ app-1 0 9\r\n"
    everything = f"AUTH {ALL}\r\n".encode() + push("app-1", b"x" * 70_000 + b"\n") + rest
    for cut in (0, 1, 5, 12, 27, 28, 29, 40, 50, 1000, 66_000, len(everything) - 20):
        async with dial(guarded) as line:
            await line.send(everything[:cut])
            await line.send(everything[cut:])
            await line.expect(b"OK\r\n")
            assert (await line.read_line()).startswith(b"OK ")
            assert (await line.read_line()).startswith(b"OK ")
            assert (await line.read_reply()).head.startswith(b"BATCHES 0 ")


async def test_a_token_can_be_changed_for_another(guarded: Daemon) -> None:
    async with dial(guarded) as line:
        await login(line, WRITER)
        assert (await line.ask(push("app-1", b"x\n"))).head == b"OK 0 1"
        await login(line, READER)
        assert await line.refused(push("app-1", b"x\n")) == "forbidden"
        assert (await line.ask(b"READ app-1 0 1\r\n")).head.startswith(b"BATCHES 0 1 ")
        assert await line.refused(f"AUTH {WRONG}\r\n".encode()) == "unauthorized"
        await line.expect_end()


async def test_the_same_push_over_and_over(guarded: Daemon, access_file: Path) -> None:
    """Single messages have a way of their own: nobody gets past the gate on it."""
    fill(guarded)
    async with dial(guarded) as reader, dial(guarded) as writer:
        await login(reader, READER)
        await login(writer, WRITER)
        for n in range(5):
            assert await reader.refused(push("app-1", b"x\n")) == "forbidden"
            assert (await writer.ask(push("app-1", b"x\n"))).head == b"OK %d 1" % (n + 2)
            assert await writer.refused(push("other", b"x\n")) == "forbidden"
        access_file.write_text(f'[tokens.writer]\ntoken = "{WRITER}"\nwrite = ["web"]\n')
        assert (await writer.ask(push("app-1", b"x\n"))).head == b"OK 7 1"
        os.kill(guarded.pid, signal.SIGHUP)
        guarded.wait_said("SIGHUP: reloaded")
        for _ in range(3):
            assert await writer.refused(push("app-1", b"x\n")) == "forbidden"


async def test_another_token_closes_the_short_ways_of_the_one_before(guarded: Daemon) -> None:
    fill(guarded)
    async with dial(guarded) as line:
        await login(line, ALL)
        for n in range(3):  # by turns: each topic has its short way now
            assert (await line.ask(push("app-1", b"x\n"))).head == b"OK %d 1" % (n + 2)
            assert (await line.ask(push("other", b"x\n"))).head == b"OK %d 1" % (n + 2)
        await login(line, WRITER)
        for n in range(3):
            assert (await line.ask(push("app-1", b"x\n"))).head == b"OK %d 1" % (n + 5)
            assert await line.refused(push("other", b"x\n")) == "forbidden"


async def test_a_daemon_that_does_not_ask_takes_any_token(tmp_path: Path) -> None:
    async with running(tmp_path) as server, dial(server) as line:
        await line.send(b"AUTH whatever\r\n" + push("app", b"x\n"))
        await line.expect(b"OK\r\nOK 0 1\r\n")
        await line.send(b"AUTH\r\nAUTH a b\r\n")
        for _ in range(2):
            assert (await line.read_line()).startswith(b"ERR bad-request usage: AUTH ")


async def test_strangers_take_no_memory_from_the_others(tmp_path: Path, access_file: Path) -> None:
    """What they send is not kept: the memory for unfinished bodies is all there."""
    limits = {"max_batch_bytes": "1MB", "max_unfinished_bytes": "1MB"}
    async with running(tmp_path, access_file=access_file, **limits) as server:
        strangers = [await opened(server) for _ in range(20)]
        for reader, writer in strangers:
            writer.write(b"PUSH app-1 1000000\r\n" + b"x" * 100_000)
            assert (await reader.readline()).startswith(b"ERR unauthorized ")
        async with dial(server) as line:
            await login(line, ALL)
            assert (await line.ask(push("app-1", b"x" * 999_999 + b"\n"))).head == b"OK 0 1"
        for _, writer in strangers:
            writer.close()


async def opened(server: Daemon) -> Any:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.slow
async def test_who_says_nothing_is_shown_out(tmp_path: Path, access_file: Path) -> None:
    """PING keeps a connection that is known, not one that is not."""
    settings = {"access_file": access_file, "request_timeout": "2s", "idle_timeout": "60s"}
    async with running(tmp_path, **settings) as server, dial(server) as known:
        await login(known, ALL)
        await known.ask(push("app", b"x\n"))
        async with dial(server) as stranger:
            await ping_until_cut(stranger, known)
        await known.send(b"PING\r\n")
        await known.expect(b"OK\r\n")


async def ping_until_cut(stranger: Line, clock: Line) -> None:
    """Every tenth of a second, as the daemon's own clock has it."""
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                await stranger.send(b"PING\r\n")
                await stranger.expect(b"OK\r\n")
            except (ConnectionError, AssertionError):
                return
            await clock.ask(b"READ app next 1 wait=100\r\n")


# -- HTTP ---------------------------------------------------------------------------------------


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes


def ask(
    daemon: Daemon, path: str, token: str | None = None, body: bytes | None = None, **headers: str
) -> Answer:
    host, _, port = daemon.http.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=30)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request("POST" if body is not None else "GET", path, body, headers)
    response = connection.getresponse()
    answer = Answer(response.status, response.headers, response.read())
    connection.close()
    return answer


ROUTES: dict[str, tuple[str, bytes | None]] = {
    "push": ("/topics/app-1", b"x\n"),
    "the line protocol": ("/log", push("app-1", b"x\n")),
    "loki": (
        "/loki/api/v1/push",
        b'{"streams": [{"stream": {"topic": "app-1"}, "values": [["1", "x"]]}]}',
    ),
    "bulk": ("/app-1/_bulk", b'{"create": {}}\n{"message": "x"}\n'),
    "messages": ("/topics/app-1/messages", None),
    "raw": ("/topics/app-1/messages?format=raw", None),
    "a topic": ("/topics/app-1", None),
    "follow": ("/topics/nothing-yet/follow", None),
    "topics": ("/topics", None),
    "stats": ("/stats", None),
    "metrics": ("/metrics", None),
    "the page": ("/", None),
    "a file of the page": ("/page/app.js", None),
    "openapi": ("/openapi.json", None),
    "cat": ("/_cat/health", None),
    "nothing": ("/nothing", None),
}


@pytest.mark.parametrize(("path", "body"), ROUTES.values(), ids=ROUTES)
def test_without_a_token_nothing_over_http(guarded: Daemon, path: str, body: bytes | None) -> None:
    for headers in (
        {},
        {"Authorization": f"Bearer {WRONG}"},
        {"Authorization": f"Basic {base64.b64encode(b'me:' + WRONG.encode()).decode()}"},
        {"Authorization": "Basic !"},
        {"Authorization": f"Digest {ALL}"},
        {"Authorization": ALL},
        {"Cookie": f"token={ALL}"},
        {"X-Token": ALL},
    ):
        answer = ask(guarded, path, body=body, **headers)
        assert answer.status == 401
        assert json.loads(answer.body)["error"] == "unauthorized"
        assert answer.headers.get_all("www-authenticate") == ["Bearer", 'Basic realm="logd"']
    assert ask(guarded, f"{path}?token={ALL}", body=body).status == 401
    with Client(at(guarded, ALL)) as client:
        assert client.topics() == []


def test_health_needs_no_token(guarded: Daemon) -> None:
    assert ask(guarded, "/healthz").status == 200
    assert ask(guarded, "/readyz").status == 200
    assert ask(guarded, "/readyz/").status == 401
    assert ask(guarded, "//healthz").status == 401


def test_what_each_may_do_over_http(guarded: Daemon) -> None:
    fill(guarded)
    pushes, reads, anybody = ("push", "loki"), ("messages", "raw"), ("topics", "stats", "the page")
    may = {
        ALL: {*pushes, *reads, *anybody, "a topic", "metrics"},
        WRITER: {*pushes, *anybody, "a topic"},
        READER: {*reads, *anybody, "a topic"},
        AUDITOR: {*anybody, "metrics"},
    }
    for token, allowed in may.items():
        for name in may[ALL]:
            path, body = ROUTES[name]
            answer = ask(guarded, path, token, body)
            assert (answer.status < 300) == (name in allowed), (token, name, answer)
            if name not in allowed:
                assert answer.status == 403
                assert json.loads(answer.body)["error"] == "forbidden"
    assert [row["topic"] for row in json.loads(ask(guarded, "/topics", READER).body)] == ["app-1"]
    refused = json.loads(
        ask(guarded, "/_bulk", READER, b'{"create":{"_index":"app-1"}}\n{}\n').body
    )
    assert "forbidden" in json.dumps(refused)


def test_the_line_protocol_over_http_keeps_to_the_token(guarded: Daemon) -> None:
    fill(guarded)
    requests = push("app-1", b"x\n") + b"READ app-1 0 1\r\nTOPICS\r\nCONFIG\r\n"
    said = ask(guarded, "/log", READER, requests).body
    assert said.startswith(b"ERR forbidden reader has no write right over app-1\r\nBATCHES 0 ")
    assert said.endswith(b'ERR forbidden reader has no admin right over "*"\r\n')
    assert b"other" not in said
    changed = ask(guarded, "/log", READER, f"AUTH {WRITER}\r\n".encode() + push("app-1", b"x\n"))
    assert changed.body == b"OK\r\nOK 2 1\r\n"


def test_the_token_as_a_password(guarded: Daemon) -> None:
    """What browsers ask for, and what shippers send that know nothing else."""
    word = base64.b64encode(f"anybody:{ALL}".encode()).decode()
    assert ask(guarded, "/topics/app-1", body=b"x\n", Authorization=f"Basic {word}").status == 200
    assert ask(guarded, "/topics", Authorization=f"bAsIc {word}").status == 200
    assert ask(guarded, "/topics", Authorization=f"BEARER {ALL}").status == 200


# -- nowhere to be seen -------------------------------------------------------------------------


async def test_tokens_are_shown_nowhere(guarded: Daemon, access_file: Path) -> None:
    fill(guarded)
    shown = [ask(guarded, path, ALL).body.decode() for path in ("/stats", "/metrics", "/topics")]
    async with dial(guarded) as line:
        await login(line, ALL)
        for command in (b"CONFIG\r\n", b"STATS\r\n", b"STATS app-1\r\n", b"HELP\r\n"):
            shown.append((await line.ask(command)).body.decode())
        for strange in (b"AUTH\r\n", f"AUTH {WRONG} {ALL}\r\n".encode()):
            shown.append((await line.ask(strange)).head.decode())
    words = [sys.executable, "-m", "logd", "--access-file", str(access_file), "config"]
    shown.append(subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout)
    assert str(access_file) in shown[-1]
    shown.append(Path(f"/proc/{guarded.pid}/cmdline").read_text())
    shown += [path.read_bytes().decode("latin-1") for path in guarded.data_dir.rglob("*.log")]
    guarded.stop()
    tells_no_token("".join(shown) + guarded.log)


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("", "[tokens.shipper]"),
        ("tokens = 5", "[tokens.shipper]"),
        (f'[tokens.a]\ntoken = "{ALL}"\nread = "', "not valid TOML"),
        (f'[tokens.a]\ntoken = "{ALL[:15]}"', "16 to 512"),
        (f'[tokens.a]\ntoken = "{ALL} {ALL}"', "without a space"),
        (f'[tokens.a]\nsha256 = "{ALL}"', "64 small hex digits"),
        (f'[tokens.a]\ntoken = "{ALL}"\ncertificate = "b"', "one of token, sha256, certificate"),
        ('[tokens.a]\nread = ["*"]', "one of token, sha256, certificate"),
        (f'[tokens.a]\ntoken = "{ALL}"\nrede = ["*"]', "unknown keys: rede"),
        (f'[tokens.a]\ntoken = "{ALL}"\nread = ["a b"]', "read, write or admin"),
        (f'[tokens.a]\ntoken = "{ALL}"\nread = 5', "read, write or admin"),
        (f'[tokens.a]\ntoken = "{ALL}"\n[tokens.b]\ntoken = "{ALL}"', "the same token as a"),
        (f'{ACCESS}\n[other]\nx = "{ALL}"', "nothing else"),
    ],
)
def test_a_wrong_access_file_is_refused_without_telling(
    tmp_path: Path, toml: str, named: str
) -> None:
    file = tmp_path / "access.toml"
    file.write_text(toml)
    command = [sys.executable, "-m", "logd", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(
        [*command, "--access-file", str(file)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert named in done.stderr
    assert str(file) in done.stderr
    tells_no_token(done.stderr)
    assert ALL[:15] not in done.stderr


def test_a_sum_in_place_of_a_token_and_a_credential(tmp_path: Path) -> None:
    """`logd token` makes both; systemd hands the file over in a directory of its own."""
    made = subprocess.run(
        [sys.executable, "-m", "logd", "token"], cwd=ROOT, capture_output=True, text=True
    )
    words = dict(line.split() for line in made.stdout.splitlines())
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    toml = f'[tokens.a]\nsha256 = "{words["sha256"]}"\nwrite = ["*"]\n'
    (credentials / "access.toml").write_text(toml)
    os.environ["CREDENTIALS_DIRECTORY"] = str(credentials)
    try:
        with running(tmp_path, access_file="credential:access.toml") as daemon:
            with Client(at(daemon, words["token"])) as client:
                client.push("app", [b"x"])
            assert words["token"] not in daemon.log
    finally:
        del os.environ["CREDENTIALS_DIRECTORY"]


# -- a token that is taken away -----------------------------------------------------------------


def reload_access(guarded: Daemon, access_file: Path, toml: str) -> None:
    access_file.write_text(toml)
    os.kill(guarded.pid, signal.SIGHUP)
    guarded.wait_said("SIGHUP: reloaded")


async def test_a_reload_is_for_commands_that_wait_to_be_carried_out(
    guarded: Daemon, access_file: Path
) -> None:
    """They were sent before it, behind a READ that still waits when it comes."""
    async with dial(guarded) as line, dial(guarded) as other:
        await login(line, ALL)
        await login(other, ALL)
        for topic in ("app-1", "web-1"):
            assert (await other.ask(push(topic, b"x\n"))).head == b"OK 0 1"
        commands = [
            b"READ app-1 next 1 wait=600000",
            b"READ web-1 0 1",
            b"READ app-1 0 1",
            b"COMMIT web-1 me 0",
            b"TOPICS",
            b"CONFIG",
        ]
        pushes = push("web-1", b"y\n") + push("app-1", b"y\n") + push("web-1", b"y\n", "count=1")
        await line.send(b"\r\n".join(commands) + b"\r\n" + pushes)
        await other.until("waiting_reads", 1, "app-1")
        rights = 'read = ["app-*"]\nwrite = ["app-*"]\n'
        keeper = f'[tokens.auditor]\ntoken = "{AUDITOR}"\nread = ["*"]\nwrite = ["*"]\n'
        reload_access(guarded, access_file, f'[tokens.all]\ntoken = "{ALL}"\n{rights}{keeper}')
        await login(other, AUDITOR)
        assert (await other.ask(push("app-1", b"z\n"))).head == b"OK 1 1"
        answers = [(await line.read_reply()).head.split(b" ")[:2] for _ in range(4)]
        assert answers == [
            [b"BATCHES", b"1"], [b"ERR", b"forbidden"], [b"BATCHES", b"0"], [b"ERR", b"forbidden"],
        ]  # fmt: skip
        assert b"web-1" not in (await line.read_reply()).body
        answers = [(await line.read_reply()).head.split(b" ")[:2] for _ in range(4)]
        assert answers == [
            [b"ERR", b"forbidden"], [b"ERR", b"forbidden"], [b"OK", b"2"], [b"ERR", b"forbidden"],
        ]  # fmt: skip
        assert (await other.stat("next", "web-1")) == 1


async def test_a_reload_is_for_a_read_that_waits(guarded: Daemon, access_file: Path) -> None:
    """Narrowed rights refuse it at once; a token that is gone ends its connection."""
    async with dial(guarded) as narrowed, dial(guarded) as revoked, dial(guarded) as other:
        await login(narrowed, READER)
        await login(revoked, ALL)
        await login(other, ALL)
        assert (await other.ask(push("app-1", b"x\n"))).head == b"OK 0 1"
        for line in (narrowed, revoked):
            await line.send(b"READ app-1 next 1 wait=600000\r\nPING\r\n")
        await other.until("waiting_reads", 2, "app-1")
        toml = f'[tokens.reader]\ntoken = "{READER}"\nread = ["web-*"]\n'
        reload_access(guarded, access_file, toml)
        assert (await narrowed.read_line()).startswith(b"ERR forbidden ")
        await narrowed.expect(b"OK\r\n")
        await revoked.expect_end()


async def test_a_reload_is_for_a_stream(guarded: Daemon, access_file: Path) -> None:
    async with dial(guarded) as narrowed, dial(guarded) as revoked, dial(guarded) as other:
        await login(narrowed, READER)
        await login(revoked, ALL)
        await login(other, ALL)
        assert (await other.ask(push("app-1", b"x\n"))).head == b"OK 0 1"
        assert await narrowed.refused(b"FOLLOW secret 0\r\n") == "forbidden"
        for line in (narrowed, revoked):
            await line.send(b"FOLLOW app-1 next\r\n")
        await other.until("followers", 2, "app-1")
        toml = f'[tokens.reader]\ntoken = "{READER}"\nread = ["web-*"]\n'
        reload_access(guarded, access_file, toml)
        assert (await narrowed.read_line()).startswith(b"ERR forbidden ")
        assert (await narrowed.ask(b"PING\r\n")).head == b"OK"
        await revoked.expect_end()


async def test_a_reload_takes_tokens_away(guarded: Daemon, access_file: Path) -> None:
    async with dial(guarded) as kept, dial(guarded) as revoked, dial(guarded) as narrowed:
        await login(kept, ALL)
        await login(revoked, WRITER)
        await login(narrowed, READER)
        assert (await revoked.ask(push("app-1", b"x\n"))).head == b"OK 0 1"
        assert (await narrowed.ask(b"READ app-1 0 1\r\n")).head.startswith(b"BATCHES ")
        toml = f'[tokens.all]\ntoken = "{ALL}"\nwrite = ["*"]\n'
        access_file.write_text(f'{toml}[tokens.reader]\ntoken = "{READER}"\nread = ["web-*"]\n')
        os.kill(guarded.pid, signal.SIGHUP)
        guarded.wait_said("SIGHUP: reloaded")
        await revoked.expect_end()
        assert await narrowed.refused(b"READ app-1 0 1\r\n") == "forbidden"
        assert (await kept.ask(push("app-1", b"x\n"))).head == b"OK 1 1"
    async with dial(guarded) as line:
        assert await line.refused(f"AUTH {WRITER}\r\n".encode()) == "unauthorized"
    access_file.write_text("what?")
    os.kill(guarded.pid, signal.SIGHUP)
    guarded.wait_said("no setting was changed")
    async with dial(guarded) as line:
        await login(line, ALL)


def test_a_token_replaced_under_its_name_is_gone(guarded: Daemon, access_file: Path) -> None:
    """The section stays, its token does not: whoever holds the old one is shown out."""
    with Client(at(guarded, READER)) as client:
        client.ping()
        changed = access_file.read_text().replace(READER, f"{READER}-new")
        access_file.write_text(changed)
        os.kill(guarded.pid, signal.SIGHUP)
        guarded.wait_said("SIGHUP: reloaded")
        with pytest.raises(ConnectionLost):
            client.stats()
    with Client(at(guarded, f"{READER}-new")) as client:
        client.stats()


LONG_READS = {
    "messages": "GET /topics/app-1/messages?limit=0",
    "ndjson": "GET /topics/app-1/messages?limit=0&format=ndjson",
    "search": "GET /topics/app-1/messages?limit=0&grep=x",
    "raw": "GET /topics/app-1/messages?limit=0&format=raw",
    "old events": "GET /topics/app-1/follow?from=0",
    "log": "POST /log",
}
READ_ALL = b"READ app-1 0 1000\r\n"


@pytest.mark.parametrize("path", LONG_READS.values(), ids=LONG_READS)
def test_a_reload_ends_long_reads(guarded: Daemon, access_file: Path, path: str) -> None:
    with Client(at(guarded, ALL)) as client:
        for _ in range(16):
            client.push("app-1", [b"x" * 1_000_000])
    with http_get(guarded, path, READER, READ_ALL if path == "POST /log" else b"") as reader:
        assert reader.recv(15).startswith(b"HTTP/1.1 200")
        revoke(guarded, access_file, READER)
        assert received(reader) < 15_000_000


def test_a_reload_ends_events_that_wait(guarded: Daemon, access_file: Path) -> None:
    """And those only that may not be read any more."""
    with Client(at(guarded, ALL)) as client:
        client.push("app-1", [b"x"])
        path = "GET /topics/app-1/follow"
        with http_get(guarded, path, READER) as revoked, http_get(guarded, path, ALL) as kept:
            for reader in (revoked, kept):
                while b"retry: 1000" not in reader.recv(1000):
                    pass
            revoke(guarded, access_file, READER)
            revoked.settimeout(KEEP_ALIVE_MS / 2000)  # it would be noticed then at the latest
            received(revoked)
            client.push("app-1", [b"for the other"])
            while b"for the other" not in kept.recv(1000):
                pass


def http_get(daemon: Daemon, what: str, token: str, body: bytes = b"") -> socket.socket:
    host, _, port = daemon.http.rpartition(":")
    connection = socket.create_connection((host, int(port)), HANG_S)
    head = f"{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def revoke(daemon: Daemon, access_file: Path, token: str) -> None:
    access_file.write_text(access_file.read_text().replace(token, f"{token}-new"))
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_said("SIGHUP: reloaded")


def received(connection: socket.socket) -> int:
    """How many bytes come before the connection ends."""
    total = 0
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 20):
            total += len(data)
    return total
