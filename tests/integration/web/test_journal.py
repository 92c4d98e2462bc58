"""`POST /upload`, by hand and by the real systemd-journal-upload."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from pathlib import Path

import pytest

from logd import Message, Reader
from logd.errors import NotFound
from tests.integration.web.conftest import Curl
from tests.integration.web.raw_http import dial, one_answer, rest, status
from tests.integration.web.shippers import process, program
from tests.support.daemon import HANG_S, Daemon, running

HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/vnd.fdo.journal\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def entry(n: int) -> bytes:
    return b"__REALTIME_TIMESTAMP=%d\n_BOOT_ID=%032x\nMESSAGE=hello %d\n\n" % (n + 10**15, 7, n)


def texts(daemon: Daemon, topic: str, count: int) -> list[str]:
    """The texts of the entries in a topic, once there are so many. The file may end in a batch
    that is just being written, so a reader asks for them."""
    found: list[Message] = []
    give_up_s = time.monotonic() + HANG_S
    while len(found) < count:
        assert time.monotonic() < give_up_s, f"only {len(found)} entries are stored"
        with contextlib.suppress(NotFound), Reader(daemon.address, topic) as reader:
            found = list(reader)
    return [json.loads(message.value)["MESSAGE"] for message in found]


def test_an_upload_that_goes_on_is_stored_as_it_comes(daemon: Daemon) -> None:
    with dial(daemon) as connection:
        connection.sendall(HEAD % b"/topics/web/upload" + CHUNKED + chunk(entry(0)))
        assert texts(daemon, "web", 1) == ["hello 0"]
        connection.sendall(chunk(entry(1)[:20]))
        connection.sendall(chunk(entry(1)[20:] + entry(2)))
        assert texts(daemon, "web", 3)[1:] == ["hello 1", "hello 2"]
        connection.sendall(b"0\r\n\r\n")
        assert b'{"messages":3}' in one_answer(connection)


def test_what_came_before_the_sender_died_is_stored(daemon: Daemon) -> None:
    with dial(daemon) as connection:
        connection.sendall(HEAD % b"/upload" + CHUNKED + chunk(entry(0) + entry(1)[:9]))
        texts(daemon, "journal", 1)
    assert texts(daemon, "journal", 1) == ["hello 0"]
    assert "Traceback" not in daemon.log


def test_a_wrong_upload_says_why(curl: Curl) -> None:
    answer = curl("/upload", body=b"hello\nworld, and some more\n")
    assert (answer.status, answer.json()["error"]) in ((400, "bad-request"), (413, "too-large"))
    answer = curl("/upload", "-H", "Content-Encoding: gzip", body=b"x")
    assert "uncompressed" in answer.json()["text"]
    assert curl("/topics").json() == []


def test_half_an_entry_has_the_time_of_a_request(tmp_path: Path) -> None:
    """A sender that is quiet between entries has all the time there is."""
    flags = ("--http-host", "127.0.0.1:0", "--request-timeout", "1s", "--idle-timeout", "2s")
    with running(tmp_path, *flags) as daemon, dial(daemon) as quiet:
        quiet.sendall(HEAD % b"/upload" + CHUNKED + chunk(entry(0)))
        assert texts(daemon, "journal", 1) == ["hello 0"]
        with dial(daemon) as stuck:
            stuck.sendall(HEAD % b"/upload" + CHUNKED + chunk(entry(1)[:20]))
            assert status(rest(stuck)) == 400
        quiet.sendall(chunk(entry(2)) + b"0\r\n\r\n")
        assert b'{"messages":2}' in one_answer(quiet)


@pytest.mark.parametrize("follow", [True, False])
def test_the_real_program(daemon: Daemon, tmp_path: Path, follow: bool) -> None:
    """By default it waits for more entries, and its one request goes on."""
    journal, export = tmp_path / "system.journal", tmp_path / "export"
    export.write_bytes(b"".join(entry(n) for n in range(1000)))
    make = [program("systemd-journal-remote"), f"--output={journal}", str(export)]
    with process(make, tmp_path) as making:
        assert making.wait(HANG_S) == 0, (tmp_path / "said").read_text()
    url = "--url=http://127.0.0.1:1775".replace("127.0.0.1:1775", daemon.http)
    send = [program("systemd-journal-upload"), url, f"--file={journal}"]
    with process(send if follow else [*send, "--follow=no"], tmp_path) as sending:
        assert texts(daemon, "journal", 1000) == [f"hello {n}" for n in range(1000)]
        if follow:
            assert sending.poll() is None
            sending.send_signal(signal.SIGTERM)
        assert sending.wait(HANG_S) == 0
    said = (tmp_path / "said").read_text()
    assert not re.search(r"(?i)fail|error|warn", said), said
