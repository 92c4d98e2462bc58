"""Real shippers deliver: every line once on a quiet line, and every line when the daemon is away.

Those that get an acknowledgement may send twice what was not acknowledged in time; they lose
nothing. Syslog over TCP has none, so it is tested on a quiet line only.
"""

from __future__ import annotations

import json
import re
import resource
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from logd import Client, Reader
from tests.integration.web import shippers
from tests.integration.web.shippers import wait_for
from tests.support.daemon import HANG_S, Daemon, lasting_address, messages, running, wait_until

COUNT = 10_000
ALL = Counter(dict.fromkeys(range(COUNT), 1))
_NUMBER = re.compile(rb"line ([0-9]+)")
_SAID = re.compile(r"syslog at \S+:([0-9]+)")

BULK = """action(type="omelasticsearch" server="127.0.0.1" serverport="1775" bulkmode="on"
    template="document" searchIndex="app" searchType="" maxbytes="1m"
    queue.type="LinkedList" queue.dequeueBatchSize="500" queue.timeoutShutdown="1000"
    action.resumeRetryCount="-1" action.resumeInterval="1")"""
FORWARD = """action(type="omfwd" target="127.0.0.1" port="1514" protocol="tcp"
    TCP_Framing="octet-counted" template="RSYSLOG_SyslogProtocol23Format"
    action.resumeRetryCount="-1" action.resumeInterval="1")"""
POST = r"""http(url("http://127.0.0.1:1775/topics/app") method("POST") body("${MESSAGE}")
    delimiter("\n") body-suffix("\n") headers("Content-Type: text/plain") batch-lines(1000)
    batch-timeout(100) timeout(30) workers(1) persist-name("logd") retries(1000))"""
POST_BULK = POST.replace("/topics/app", "/_bulk").replace(
    'body("${MESSAGE}")',
    """body('{"index": {"_index": "app"}}\n$(format-json --pair message="${MESSAGE}")')""",
)


def write_lines(directory: Path, first: int = 0, count: int = COUNT) -> None:
    with (directory / "lines").open("ab") as lines:
        lines.writelines(
            b'line %d \xc3\xa9 "quoted" \\ %%\n' % n for n in range(first, first + count)
        )


def numbers(found: list[bytes]) -> Counter[int]:
    """How often each line is there; the keys are in the order in which the lines were stored."""
    matches = [_NUMBER.search(message) for message in found]
    assert all(matches), found[:3]
    return Counter(int(match[1]) for match in matches if match)


def delivered(daemon: Daemon, topic: str) -> Counter[int]:
    return numbers(messages(daemon.stored(topic)))


def received(daemon: Daemon, topic: str) -> Counter[int]:
    """The same while more may come: of a file one could see half of a batch."""
    with Reader(daemon.address, topic) as reader:
        return numbers([message.value for message in reader])


# -- those with an acknowledgement --------------------------------------------------------------

Shipper = Callable[[Path, str], list[str]]


def posted_lines(directory: Path, address: str) -> list[str]:
    return shippers.syslog_ng(directory, POST.replace("127.0.0.1:1775", address))


def posted_bulk(directory: Path, address: str) -> list[str]:
    return shippers.syslog_ng(directory, POST_BULK.replace("127.0.0.1:1775", address))


def rsyslog_bulk(directory: Path, address: str) -> list[str]:
    return shippers.rsyslog(directory, BULK.replace("1775", address.rpartition(":")[2]))


TEXT = 'line 0 é "quoted" \\ %'
SHIPPERS: list[tuple[Shipper, Callable[[bytes], str]]] = [
    (posted_lines, bytes.decode),
    (posted_bulk, lambda document: str(json.loads(document)["message"])),
    (rsyslog_bulk, lambda document: str(json.loads(document)["message"])),
]

# rsyslog's bulk sender looks at no status: what is refused, even for a moment, it drops.
REPEATING = pytest.mark.parametrize("shipper", [posted_lines, posted_bulk])


@pytest.mark.parametrize(("shipper", "text"), SHIPPERS)
def test_every_line_once(
    daemon: Daemon, tmp_path: Path, shipper: Shipper, text: Callable[[bytes], str]
) -> None:
    write_lines(tmp_path)
    with shippers.process(shipper(tmp_path, daemon.http), tmp_path):
        wait_for(daemon, "app", COUNT)
    assert delivered(daemon, "app") == ALL
    assert list(delivered(daemon, "app")) == list(ALL)  # in order
    assert text(messages(daemon.stored("app"))[0]) == TEXT


@REPEATING
def test_nothing_is_lost_when_the_daemon_restarts(tmp_path: Path, shipper: Shipper) -> None:
    address = lasting_address()
    write_lines(tmp_path, 0, COUNT // 2)
    with (
        running(tmp_path, "--http-host", address) as daemon,
        shippers.process(shipper(tmp_path, address), tmp_path),
    ):
        wait_for(daemon, "app", 1)
        assert daemon.stop() == 0
        write_lines(tmp_path, COUNT // 2, COUNT // 2)
        refuse_twice(address)
        daemon.start()
        wait_for(daemon, "app", COUNT)
        while missing := COUNT - len(found := received(daemon, "app")):
            wait_for(daemon, "app", found.total() + missing)


def refuse_twice(address: str) -> None:
    """Stand in for a daemon that stops: answer 503 to whoever asks."""
    host, _, port = address.rpartition(":")
    answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with socket.create_server((host, int(port))) as listening:
        listening.settimeout(HANG_S)
        for _ in range(2):
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(HANG_S)
                connection.recv(1 << 20)
                connection.sendall(answer)


@contextmanager
def full(daemon: Daemon) -> Iterator[None]:
    """No file of the daemon may grow."""
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    yield
    no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, no_limit)


@REPEATING
def test_nothing_is_lost_when_the_disk_is_full(
    daemon: Daemon, tmp_path: Path, shipper: Shipper
) -> None:
    write_lines(tmp_path)
    with ExitStack() as shipping:
        with Client(daemon.address) as client, full(daemon):
            shipping.enter_context(shippers.process(shipper(tmp_path, daemon.http), tmp_path))
            wait_until(lambda: int(client.stats()["refused"]) >= 2)
        wait_for(daemon, "app", COUNT)
        assert delivered(daemon, "app") == ALL


# -- syslog, which has none ---------------------------------------------------------------------


def forwarding(directory: Path, daemon: Daemon, framing: str) -> list[str]:
    said = _SAID.search(daemon.log)
    assert said is not None
    action = FORWARD.replace("1514", said[1]).replace("octet-counted", framing)
    return shippers.rsyslog(directory, action)


@pytest.mark.parametrize("framing", ["octet-counted", "traditional"])
def test_rsyslog_forwards_syslog(tmp_path: Path, framing: str) -> None:
    write_lines(tmp_path)
    with running(tmp_path, "--syslog-host", "127.0.0.1:0") as daemon:
        with shippers.process(forwarding(tmp_path, daemon, framing), tmp_path):
            wait_for(daemon, "syslog", COUNT)
        assert delivered(daemon, "syslog") == ALL
        assert list(delivered(daemon, "syslog")) == list(ALL)  # in order
        first = messages(daemon.stored("syslog"))[0]
    assert re.fullmatch(rb'<\d+>1 \S+ \S+ test - - - line 0 \xc3\xa9 "quoted" \\ %', first), first


def test_a_full_disk_holds_a_syslog_sender_back(tmp_path: Path) -> None:
    write_lines(tmp_path)
    with running(tmp_path, "--syslog-host", "127.0.0.1:0") as daemon:
        command = forwarding(tmp_path, daemon, "octet-counted")
        with ExitStack() as shipping:
            with full(daemon):
                shipping.enter_context(shippers.process(command, tmp_path))
                daemon.wait_said("rejected no-space from 127.0.0.1")
            wait_for(daemon, "syslog", COUNT)
        assert delivered(daemon, "syslog") == ALL
