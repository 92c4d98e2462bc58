"""Peers that vanish without a goodbye: their connections are closed, and their slots free again."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from logd import Client
from logd.errors import Busy
from logd.wire.addresses import parse_address
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.daemon import wait_until
from tests.support.network_links import Link

_IDLE_S = 5.0  # in which a busy machine opens all the lines
_LARGE = b"x" * 1_000_000


@pytest.fixture
def link(namespace: None) -> Iterator[Link]:
    with Link() as made:
        yield made


@pytest.mark.slow
@pytest.mark.usefixtures("namespace")
def test_connections_behind_a_cut_link_are_closed(
    link: Link, tmp_path: Path, make_daemon: Callable[..., TracedDaemon], survived: Counter[str]
) -> None:
    daemon = make_daemon(
        tmp_path / "data",
        host=f"{link.there}:0",
        idle_timeout=_IDLE_S,
        request_timeout=_IDLE_S,
        max_connections=6,
    )
    daemon.namespace = link.namespace
    daemon.start()
    with ExitStack() as stack:
        with link.far_side():
            observer = stack.enter_context(daemon.client())
        for _ in range(20):
            observer.push("large", [_LARGE])
        observer.push("app", [b"before"])  # to make a topic may take the disk a while
        lines = _open_lines(daemon, stack)
        wait_until(lambda: _connections(observer) == 1 + len(lines))
        with daemon.client() as one_more, pytest.raises(Busy):
            one_more.ping()
        link.cut()
        cut_s = time.monotonic()
        for line in lines.values():
            line.close()
        wait_until(lambda: _connections(observer) == 1)
        assert time.monotonic() - cut_s < _IDLE_S + 10.0
        link.mend()
        with daemon.client() as client:
            assert client.push("app", [b"after"]).messages == 1
    survived["connections behind a cut link"] += len(lines)


def _connections(client: Client) -> int:
    return int(client.stats()["connections"])


def _open_lines(daemon: TracedDaemon, stack: ExitStack) -> dict[str, socket.socket]:
    """One connection for each thing it may be busy with."""
    requests = {
        "nothing, after a push": b"PUSH app 2\r\na\n",
        "half a line": b"PUSH ap",
        "half a body": b"PUSH app 1000\r\nhalf of it",
        "a wait for messages": b"READ large next 1 wait=1000\r\n",
        "a reply that is not taken": b"READ large 0 20\r\n",
    }
    lines = {}
    for what, request in requests.items():
        line = socket.socket()
        stack.callback(line.close)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(parse_address(daemon.address))
        line.sendall(request)
        lines[what] = line
    assert lines["nothing, after a push"].recv(100) == b"OK 1 1\r\n"
    return lines


def test_without_a_fault_a_busy_connection_outlives_the_idle_timeout(
    tmp_path: Path, make_daemon: Callable[..., TracedDaemon]
) -> None:
    """What the test above relies on: it is the silence that closes a connection."""
    idle_s = 3.0  # more than a busy machine keeps anybody waiting
    daemon = make_daemon(tmp_path / "data", idle_timeout=idle_s).start()
    with daemon.client() as client:
        start_s = time.monotonic()
        while time.monotonic() - start_s < 2.5 * idle_s:
            _exchange(client)


def _exchange(client: Client) -> None:
    client.push("app", [b"x"])
    client.read("app", "next", 1, wait_ms=100)
