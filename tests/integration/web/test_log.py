"""`POST /log`: the protocol's commands in, its replies out."""

from __future__ import annotations

import socket
import subprocess
import threading

from logd import Client
from logd.batch import reading, scan
from tests.integration.web.conftest import Curl
from tests.support.daemon import HANG_S, Daemon, wait_until


def test_any_number_of_commands(curl: Curl, daemon: Daemon) -> None:
    body = (
        b"".join(b"PUSH app 2\r\n%d\n" % (n % 10) for n in range(5000)) + b"PING\r\nTAIL app 2\r\n"
    )
    answer = curl("/log", body=body)
    lines = answer.body.split(b"\r\n", 5001)
    assert lines[:5000] == [b"OK %d 1" % n for n in range(5000)]
    assert lines[5000] == b"OK"
    assert lines[5001].startswith(b"BATCHES 4998 2 ")
    assert daemon.stored("app").endswith(b"\n8\n9\n")


def test_a_body_that_ends_too_early_stores_nothing_of_its_last_command(curl: Curl) -> None:
    answer = curl("/log", body=b"PUSH app 2\r\na\nPUSH app 100\r\nb\n")
    assert answer.body == b"OK 0 1\r\n"
    assert curl("/topics/app").json()["next"] == 1


def test_a_large_topic_comes_whole(curl: Curl, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        for _ in range(40):
            client.push("big", [b"x" * 999_999])
    answer = curl("/log", body=b"READ big 0 40\r\nPING\r\n")
    head, _, rest = answer.body.partition(b"\r\n")
    size = int(head.split()[-1])
    assert head == b"BATCHES 0 40 %d" % size
    assert rest[size:] == b"OK\r\n"
    assert sum(1 for _ in scan(reading(rest[:size]), 0, size)) == 40


def test_a_large_body_goes_in_as_it_comes(curl: Curl, daemon: Daemon) -> None:
    one = b"PUSH big 100000\r\n" + b"y" * 99_999 + b"\n"
    answer = curl("/log", "-H", "Transfer-Encoding: chunked", body=one * 500)
    assert answer.body == b"".join(b"OK %d 1\r\n" % n for n in range(500))
    assert daemon.rss_bytes() < 200 << 20


def test_replies_come_while_the_body_is_still_on_its_way(daemon: Daemon) -> None:
    """By hand: curl reads nothing before it has sent everything."""
    host, port = daemon.http.split(":")
    head = b"POST /log HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((host, int(port)), HANG_S) as connection:
        replies = connection.makefile("rb")
        connection.sendall(head)
        for n in range(3):
            connection.sendall(b"15\r\nPUSH app\r\nmessage %d\r\n\r\n" % n)
            while n == 0 and replies.readline() != b"\r\n":
                pass
            assert replies.readline() == b"8\r\n"
            assert replies.read(10) == b"OK %d 1\r\n\r\n" % n
        connection.sendall(b"0\r\n\r\n")
        assert replies.read(5) == b"0\r\n\r\n"


def test_a_read_that_waits(curl: Curl, daemon: Daemon) -> None:
    curl("/log", body=b"PUSH app\r\nzero\r\n")
    got: list[bytes] = []
    thread = threading.Thread(
        target=lambda: got.append(curl("/log", body=b"READ app 1 1 wait=30000\r\n").body)
    )
    thread.start()
    with Client(daemon.address) as client:
        wait_until(lambda: client.stats("app")["waiting_reads"] == "1")
        client.push("app", [b"one"])
    thread.join(HANG_S)
    assert got[0].startswith(b"BATCHES 1 1 ")


def test_a_client_that_goes_while_it_waits_is_forgotten(curl: Curl, daemon: Daemon) -> None:
    curl("/log", body=b"PUSH app\r\nzero\r\n")
    command = curl.command("/log", "--data-binary", "READ app 1 1 wait=60000\n")
    with Client(daemon.address) as client, subprocess.Popen(command) as process:
        wait_until(lambda: client.stats("app")["waiting_reads"] == "1")
        process.terminate()
        process.wait(HANG_S)
        wait_until(lambda: client.stats("app")["waiting_reads"] == "0")
        assert client.stats()["connections"] == "1"


def test_a_stream(daemon: Daemon) -> None:
    """A FOLLOW at the end of the body: the response goes on as messages are stored."""
    host, _, port = daemon.http.rpartition(":")
    body = b"FOLLOW app first\r\n"
    head = b"POST /log HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        Client(daemon.address) as client,
        socket.create_connection((host, int(port)), HANG_S) as connection,
    ):
        client.push("app", [b"message 0"])
        connection.sendall(head + body)
        got = b""
        for n in range(20):
            while b"message %d\n" % n not in got:
                piece = connection.recv(1 << 16)
                assert piece, got
                got += piece
            assert b"BATCHES %d 1 " % n in got
            client.push("app", [b"message %d" % (n + 1)])
        assert client.stats("app")["followers"] == "1"
