"""Words and lengths that must not be understood; and that every row of the table has its test."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import zstandard

from logd.access.access_file import Access, Grant, token_sum
from logd.errors import Unauthorized
from tests.integration.security.test_tokens import ask
from tests.support.daemon import ROOT, Daemon, dial, push, running

PAGE = ROOT / "docs" / "security.md"
TOPICS = ["../x", "/etc/x", ".", "..", "...", "a/b", "a\0b", "-rf", "a" * 300, "abc\n", "abc\r",
          "é", ".new-app", ""]  # fmt: skip
NUMBERS = ["1_0", "+5", "٣", "-1", "5" * 900, " 7", "7 ", "0x10", "1e3", "", "9223372036854775808"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("strange"), http_host="127.0.0.1:0") as started:
        yield started


@pytest.mark.parametrize("topic", TOPICS)
async def test_topics(daemon: Daemon, topic: str) -> None:
    """Over HTTP each can be written; in a line of the protocol those without a line end can."""
    before = everything_below(daemon.data_dir.parent)
    words = ("PUSH {} 2\r\nx\n", "PUSH {} 2 id=p:1\r\nx\n", "PUSH {}\r\nx\r\n", "READ {} 0 1\r\n",
             "PARTITIONS {}\r\n")  # fmt: skip
    for request in () if "\n" in topic else words:
        async with dial(daemon) as line:
            code = await line.refused(request.format(topic).encode())
            assert code in ("bad-topic", "bad-request")
    if topic:
        answer = ask(daemon, f"/topics/{quote(topic, safe='')}", body=b"x\n")
        assert answer.status in (400, 404, 405)
    assert everything_below(daemon.data_dir.parent) == before


def everything_below(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


@pytest.mark.parametrize("number", NUMBERS)
async def test_numbers(daemon: Daemon, number: str) -> None:
    async with dial(daemon) as line:
        assert (await line.ask(push("app", b"x\n"))).head.startswith(b"OK ")
        for request in (
            f"READ app {number} 1",
            f"READ app 0 {number}",
            f"READ app @{number} 1",
            f"READ app 0 1 bytes={number}",
            f"TAIL app {number}",
            f"COMMIT app c {number}",
        ):
            assert await line.refused(request.encode() + b"\r\n") == "bad-request", request
    async with dial(daemon) as line:
        code = await line.refused(f"PUSH app {number}\r\nx\n".encode())
        assert code in ("bad-request", "too-large")
    async with dial(daemon) as line:
        assert await line.refused(b"READ app " + b"5" * 5000 + b" 1\r\n") == "too-large"


async def test_a_length_costs_nothing(daemon: Daemon) -> None:
    before = daemon.rss_bytes()
    for length in (1 << 40, (1 << 63) - 1, 9 << 20):
        async with dial(daemon) as line:
            assert await line.refused(f"PUSH app {length}\r\nx".encode()) == "too-large"
            await line.expect_end()
    assert daemon.rss_bytes() < before + (4 << 20)


async def test_a_line_without_an_end(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.send(b"x" * 1024)
        await line.send(b"x" * 10)
        assert (await line.read_line()).startswith(b"ERR too-large a command line is at most 1024")
        await line.expect_end()


async def test_a_zstd_bomb(daemon: Daemon) -> None:
    """Refused while it is inflated: neither the memory nor the time of what it claims is spent."""
    async with dial(daemon) as line:
        assert (await line.ask(push("bombed", b"x\n"))).head == b"OK 0 1"
        before = daemon.rss_bytes()
        bombs = [zstandard.compress(bytes(1 << 28), 19)]
        bombs.append(zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28)))
        at = zstandard.frame_header_size(bombs[0]) - 4
        bombs.append(bombs[0][:at] + (1000).to_bytes(4, "little") + bombs[0][at + 4 :])  # a lie
        for bomb in bombs:
            async with dial(daemon) as other:  # too-large ends a connection
                code = await other.refused(push("bombed", bomb, "enc=lines+zstd"))
            assert code in ("too-large", "bad-request")
        assert daemon.rss_bytes() < before + (32 << 20)
        assert (await line.ask(push("bombed", b"y\n"))).head == b"OK 1 1"


def test_sums_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sum, with the function for it, whether one before it was right or not."""
    compared = []

    def compare(known: bytes, presented: bytes) -> bool:
        compared.append(known)
        return known == presented

    monkeypatch.setattr(hmac, "compare_digest", compare)
    grants = {token_sum(b"token %d" % n): Grant(str(n)) for n in range(5)}
    access = Access(grants, {})
    assert access.of_token(b"token 0").name == "0"
    with pytest.raises(Unauthorized):
        access.of_token(b"token 9")
    assert compared == [*grants] * 2


def test_every_row_of_the_table_has_a_test_that_exists() -> None:
    rows = re.findall(r"(?m)^\| .+ \| .+ \| (`tests/.+`) \|$", PAGE.read_text())
    assert len(rows) >= 20
    for row in rows:
        for named in re.findall(r"`([^`]+)`", row):
            file, _, test = named.partition("::")
            assert re.search(rf"(?m)^(async )?def {test}\b", (ROOT / file).read_text()), named
