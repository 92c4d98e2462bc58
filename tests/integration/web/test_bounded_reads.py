"""Reads that would take much memory or time are done in small steps, and nobody else waits."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from logd import Client
from logd.batch import LINES, SIZED, compress
from logd.web.batch_rendering import CACHE_BYTES
from logd.web.read_threads import CLIENT_SEARCHES
from logd.wire.requests import Push
from tests.support.daemon import HANG_S, Daemon, running, wait_until
from tests.support.delay_probe import DelayProbe
from tests.support.long_run import LONG

BOMB_BYTES = 8 << 20
BOMBS = {
    "lines": (b"\n" * BOMB_BYTES, LINES),
    "sized": (b"0" + b" 0" * (BOMB_BYTES // 2 - 1) + b"\n", SIZED),
    "one message": (b"\x01" * (BOMB_BYTES - 1) + b"\n", LINES),
}
SLOW = "a[ab]{1000}c"  # the slowest kind that is accepted: 0.1 MB/s over a and b


def push_compressed(daemon: Daemon, topic: str, content: bytes, enc: str, times: int = 1) -> None:
    body, enc = compress(content, enc)
    with Client(daemon.address) as client:
        for _ in range(times):
            client.push_batch(Push(topic, body, enc))


def connect(daemon: Daemon, path: str, method: str = "GET", body: bytes = b"") -> socket.socket:
    host, _, port = daemon.http.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(HANG_S)
    connection.connect((host, int(port)))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def get(daemon: Daemon, path: str, most_bytes: int = 20 << 20) -> bytes:
    """What comes, up to `most_bytes` or the end."""
    got = bytearray()
    with connect(daemon, path) as connection:
        while len(got) < most_bytes and (data := connection.recv(1 << 20)):
            got += data
    return bytes(got)


QUERIES = ("limit=1", "limit=1&grep=q&until=200000", "limit=0", "limit=0&format=ndjson")


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_take_little_memory(daemon: Daemon, kind: str) -> None:
    push_compressed(daemon, "bomb", *BOMBS[kind])
    with DelayProbe(daemon, "PING") as pinging:
        for query in QUERIES:
            assert get(daemon, f"/topics/bomb/messages?{query}").startswith(b"HTTP/1.1 200 ")
        assert get(daemon, "/topics/bomb/follow?from=0").startswith(b"HTTP/1.1 200 ")
    assert pinging.grown_bytes < 64 << 20
    assert pinging.longest_s < HANG_S / 3


def test_many_bombs_as_text(daemon: Daemon) -> None:
    content, enc = BOMBS["lines"]
    push_compressed(daemon, "bomb", content, enc, times=80)
    with DelayProbe(daemon, "PING") as pinging:
        assert len(get(daemon, "/topics/bomb/messages?limit=0", 50 << 20)) >= 50 << 20
    assert pinging.grown_bytes < 64 << 20


@pytest.mark.alone
def test_bombs_delay_nobody(daemon: Daemon) -> None:
    for kind, (content, enc) in BOMBS.items():
        push_compressed(daemon, kind.replace(" ", "-"), content, enc)
    with DelayProbe(daemon, "PING") as pinging:
        for kind in BOMBS:
            for query in QUERIES:
                get(daemon, f"/topics/{kind.replace(' ', '-')}/messages?{query}")
    assert pinging.longest_s < 0.1


# -- clients that do not read -------------------------------------------------------------------

# How many readers start together, and then how many more. Readers of large messages that start
# together take seconds: they have each other's unfinished work dropped, and done again.
MANY = [40] if LONG else [12]
FEW = [4] if LONG else [1, 1, 1]
STALLED = {
    "text": (MANY, "/topics/big/messages?limit=0"),
    "ndjson": (MANY, "/topics/big/messages?limit=0&format=ndjson"),
    "raw": (MANY, "/topics/big/messages?limit=0&format=raw"),
    "events": (MANY, "/topics/big/follow?from=0"),
    "log": (MANY, "/log"),
    "one message": (MANY, "/topics/one/messages?limit=0"),
    "one message as ndjson": (FEW, "/topics/one/messages?limit=0&format=ndjson"),
    "compressed": (FEW, "/topics/compressed/messages?limit=0&format=ndjson"),
}


def test_clients_that_do_not_read_cost_little(daemon: Daemon) -> None:
    line = b"a line of a hundred bytes, more or less, as it is found in many logs of many programs"
    big = (line + b"\n") * ((8 << 20) // (len(line) + 1))
    one = random.Random(1).randbytes(4 << 20).hex().encode()[:-1] + b"\n"
    with Client(daemon.address) as client:
        for _ in range(2):
            client.push_batch(Push("big", big))
            client.push_batch(Push("one", one))
    push_compressed(daemon, "compressed", one, LINES, times=2)
    before, stuck = daemon.rss_bytes(), list[socket.socket]()
    for groups, path in STALLED.values():
        for readers in groups:
            stuck += stall(daemon, path, readers)
    assert daemon.rss_bytes() - before < len(stuck) * 160 * 1024 + CACHE_BYTES + (16 << 20)
    for connection in stuck:
        connection.close()


def stall(daemon: Daemon, path: str, readers: int) -> list[socket.socket]:
    """Connections that have received one byte, and to which no more can be sent."""
    method, body = ("POST", b"READ big 0 1000000\r\n") if path == "/log" else ("GET", b"")
    stuck = [connect(daemon, path, method, body) for _ in range(readers)]
    for connection in stuck:
        assert connection.recv(1)
    wait_until_idle(daemon)
    return stuck


def wait_until_idle(daemon: Daemon) -> None:
    """Wait until no thread of the daemon runs, or waits for a processor, for 0.2 s."""
    idle, give_up_s = 0, time.monotonic() + 4 * HANG_S
    while idle < 20:
        assert time.monotonic() < give_up_s, "the daemon still works"
        idle = idle + 1 if is_idle(daemon) else 0
        threading.Event().wait(0.01)


def is_idle(daemon: Daemon) -> bool:
    """Processor time would not tell: a daemon that gets none on a busy machine uses none."""
    tasks = Path(f"/proc/{daemon.pid}/task").glob("*/stat")
    return all(task.read_text().rpartition(")")[2].split()[0] == "S" for task in tasks)


# -- searches -----------------------------------------------------------------------------------


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Daemon]:
    """With a topic of a and b, in which a search takes minutes."""
    with running(tmp_path, "--http-host", "127.0.0.1:0") as daemon:
        letters = bytes(random.Random(1).choices(b"ab", k=2000)) + b"\n"
        with Client(daemon.address) as client:
            for _ in range(8):
                client.push_batch(Push("ab", letters * 4000))
        yield daemon


SEARCH = f"/topics/ab/messages?limit=0&grep={quote(SLOW)}"


def searches(daemon: Daemon) -> list[socket.socket]:
    return [connect(daemon, SEARCH) for _ in range(CLIENT_SEARCHES)]


def status(daemon: Daemon, path: str) -> bytes:
    with connect(daemon, path) as connection:
        return connection.recv(12)[9:]


def busy(daemon: Daemon) -> None:
    """Wait until as many searches are open as one client may have."""
    search = "/topics/ab/messages?grep=nothing&limit=1&until=1"
    wait_until(lambda: status(daemon, search) == b"503")


def test_searches_do_not_hold_up_writes_and_other_reads(slow: Daemon) -> None:
    open_ = searches(slow)
    busy(slow)
    with Client(slow.address) as client:
        for _ in range(20):
            client.push("app", [b"x"])
    assert get(slow, "/topics/app/messages").endswith(b"x\n" * 20 + b"\r\n0\r\n\r\n")
    for connection in open_:
        connection.close()


def test_too_many_searches_are_refused(slow: Daemon) -> None:
    open_ = searches(slow)
    busy(slow)
    refused = get(slow, SEARCH)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in refused
    assert b'"busy"' in refused
    follow = get(slow, f"/topics/ab/follow?grep={quote(SLOW)}")
    assert follow.startswith(b"HTTP/1.1 503 ")
    for connection in open_:
        connection.close()


def test_a_search_ends_when_its_client_goes(slow: Daemon) -> None:
    """Then there is room for others, and the daemon rests."""
    open_ = searches(slow)
    busy(slow)
    for connection in open_:
        connection.close()
    wait_until(lambda: status(slow, "/topics/ab/messages?grep=b&limit=1") == b"200")
    wait_until_idle(slow)
    assert "rejected internal" not in slow.log


def test_a_daemon_stops_while_it_searches(slow: Daemon) -> None:
    open_ = searches(slow)
    busy(slow)
    assert slow.stop() == 0
    assert "could not stop" not in slow.log
    for connection in open_:
        connection.close()


def test_a_daemon_stops_while_it_searches_one_large_message(daemon: Daemon) -> None:
    """Such a search takes a minute and cannot be interrupted; the stop does not wait for it."""
    line = bytes(random.Random(1).choices(b"ab", k=BOMB_BYTES - 1)) + b"\n"
    push_compressed(daemon, "ab", line, LINES)
    wait_until_idle(daemon)
    before_s = daemon.cpu_s()
    with connect(daemon, SEARCH):
        wait_until(lambda: daemon.cpu_s() - before_s > 0.5)  # so the search has begun
        assert daemon.stop() == 0
    assert "could not stop" not in daemon.log
    assert "Traceback" not in daemon.log


def test_only_patterns_that_take_long_are_refused(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"x"])
    for pattern in ("a.{900}c", "\\pL{100}c", "(.{1,30}){30}c"):
        refused = get(daemon, f"/topics/app/messages?grep={quote(pattern)}")
        assert refused.startswith(b"HTTP/1.1 400 "), pattern
        assert b"grep " in refused
    for pattern in ("\\pL+", "(?i)error.*timeout", "\\d{1,3}(\\.\\d{1,3}){3}"):
        assert status(daemon, f"/topics/app/messages?grep={quote(pattern)}") == b"200", pattern


def test_patterns_are_not_kept(daemon: Daemon) -> None:
    """The automaton that a search builds is freed with its request."""
    letters = random.Random(1).choices(b"abcdefghijklmnopqrstuvwxyz", k=60_000)
    with Client(daemon.address) as client:
        client.push("app", [bytes(letters)])

    def search(first: int) -> int:
        for number in range(first, first + 30):
            query = f"grep={quote(f'[a-q][^u-z]{{13}}X{number}')}"
            assert status(daemon, f"/topics/app/messages?{query}") == b"200"
        return daemon.rss_bytes()

    before = search(0)
    assert search(30) < before + (2 << 20)


# -- globs --------------------------------------------------------------------------------------


def test_a_glob_is_what_the_protocol_allows(empty: Daemon) -> None:
    for glob in ("a" * 129, "[a-z]" * 1000, "", "a b", "ä", "a\nb", "a/b"):
        refused = get(empty, f"/topics?glob={quote(glob)}")
        assert refused.startswith(b"HTTP/1.1 400 "), glob
        assert b"a glob is 1 to 128 of" in refused


def test_globs_are_not_kept(daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"x"])

        def list_topics(first: int) -> int:
            for number in range(first, first + 400):
                client.topics(f"{number}{'[!a-z]*' * 17}")
            return daemon.rss_bytes()

        before = list_topics(0)
        assert list_topics(400) < before + (2 << 20)
