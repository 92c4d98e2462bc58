"""Old partitions go by themselves: which, what readers see of it, and what survives it."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from logd.config import load
from tests.integration.storage.data_dirs import fill, wait_for_files
from tests.integration.storage.small_log import read_files
from tests.support.daemon import Daemon, Line, dial, messages, push, running, wait_until


async def agree(line: Line, server: Daemon, topic: str) -> None:
    """TOPICS, PARTITIONS, STATS and the files all say the same."""
    (row,) = (await line.ask(f"TOPICS {topic}\r\n".encode())).body.decode().splitlines()
    name, *numbers = row.split()
    first, next_, size, count = map(int, numbers)
    table = (await line.ask(f"PARTITIONS {topic}\r\n".encode())).body.decode().splitlines()
    rows = [list(map(int, line_.split())) for line_ in table]
    files = server.log_files(topic)
    assert name == topic
    assert [path.name for path in files] == [f"{row[0]:020d}.log" for row in rows]
    assert [path.stat().st_size for path in files] == [row[2] for row in rows]
    assert (rows[0][0], rows[-1][1], sum(row[2] for row in rows), len(rows)) == (
        first, next_, size, count,
    )  # fmt: skip
    assert all(before[1] == behind[0] for before, behind in pairwise(rows))
    stats = await line.values(f"STATS {topic}".encode())
    assert (stats["first"], stats["next"], stats["partitions"]) == (
        str(first), str(next_), str(count),
    )  # fmt: skip


TOML = """
partition-bytes = 1
max-partitions = 4

[topics."few-*"]
max-partitions = 2

[topics."few-all"]
max-partitions = 0

[topics.small]
max-partitions = 0
max-bytes = 300

[topics.young]
max-partitions = 0
max-age = "500ms"
"""


async def test_limits_by_default_and_for_single_topics(tmp_path: Path) -> None:
    (tmp_path / "logd.toml").write_text(TOML)
    server = running(tmp_path, config=tmp_path / "logd.toml")
    async with server, dial(server) as line:
        topics = {"any": 6, "few-x": 6, "few-all": 6, "small": 6, "young": 3}
        for topic, count in topics.items():
            await fill(line, topic, count, b"m" * 20 + b"\n")
        for topic, left in (("any", 4), ("few-x", 2), ("small", 3), ("young", 1)):
            await line.until("partitions", left, topic)
        wait_for_files(server, {"any": 4, "few-x": 2, "small": 3, "young": 1})
        assert len(server.log_files("few-all")) == 6
        for topic in topics:
            await agree(line, server, topic)
        await line.send(b"READ any 1 5\r\n")
        await line.expect(b"ERR out-of-range first=2 next=6\r\n")
        await line.send(b"READ few-x 0 5\r\n")
        await line.expect(b"ERR out-of-range first=4 next=6\r\n")
        reply = await line.ask(b"READ any first 9\r\n")
        assert reply.head.startswith(b"BATCHES 2 4 ")
        assert messages(reply.body) == [b"m" * 20] * 4
        assert (await line.ask(b"TAIL few-x 100\r\n")).head.startswith(b"BATCHES 4 2 ")
        assert server.stop() == 0
    async with server, dial(server) as line:
        for topic in topics:
            await agree(line, server, topic)
        assert await line.stat("first", "any") == 2


def test_sections_of_the_file_are_read_in_order_and_the_last_wins(tmp_path: Path) -> None:
    (tmp_path / "logd.toml").write_text(TOML)
    config = load({}, {}, tmp_path / "logd.toml")
    limits = {
        topic: (c.max_partitions, c.max_bytes, c.max_age_s)
        for topic in ("any", "few-x", "few-all", "small", "young", "smaller")
        for c in (config.for_topic(topic),)
    }
    assert limits == {
        "any": (4, 0, 0.0),
        "few-x": (2, 0, 0.0),
        "few-all": (0, 0, 0.0),
        "small": (0, 300, 0.0),
        "young": (0, 0, 0.5),
        "smaller": (4, 0, 0.0),
    }


def deleted_but_open(server: Daemon) -> list[str]:
    """Files that the daemon keeps on the disk though they have no name any more."""
    directory = Path(f"/proc/{server.pid}/fd")
    targets = []
    for fd in os.listdir(directory):
        try:
            targets.append(os.readlink(directory / fd))
        except FileNotFoundError:
            pass  # closed since it was listed
    ours = [target for target in targets if target.startswith(str(server.data_dir))]
    return [target for target in ours if target.endswith("(deleted)")]


async def test_a_read_under_way_finishes_though_its_partitions_went(tmp_path: Path) -> None:
    body = os.urandom(7 << 20).replace(b"\n", b".")[:-1] + b"\n"
    server = running(tmp_path, partition_bytes=1, max_partitions=3)
    async with server, dial(server) as line, dial(server) as slow:
        await fill(line, "app", 3, body)
        before = server.stored("app")
        await slow.send(b"READ app 0 3\r\n")
        assert await slow.read_line() == b"BATCHES 0 3 %d" % len(before)
        await fill(line, "app", 3)
        await line.until("first", 3, "app")
        wait_for_files(server, {"app": 3})
        await line.send(b"READ app 0 1\r\n")
        await line.expect(b"ERR out-of-range first=3 next=6\r\n")
        assert deleted_but_open(server)
        await slow.expect(before)
        await slow.send(b"PING\r\n")
        await slow.expect(b"OK\r\n")


async def test_a_partition_that_went_gives_its_space_back(tmp_path: Path) -> None:
    """Also one that was read from shortly before."""
    server = running(tmp_path, partition_bytes=1, max_partitions=3)
    async with server, dial(server) as line:
        await fill(line, "app", 3)
        assert (await line.ask(b"READ app 0 3\r\n")).head.startswith(b"BATCHES 0 3 ")
        await fill(line, "app", 3)
        await line.until("first", 3, "app")
        wait_for_files(server, {"app": 3})
        wait_until(lambda: deleted_but_open(server) == [])


@pytest.mark.parametrize("is_killed", [False, True])
async def test_first_survives_and_what_is_left_below_it_goes(
    tmp_path: Path, is_killed: bool
) -> None:
    server = running(tmp_path, partition_bytes=1, max_partitions=2)
    directory, aside = server.topic_dir("app"), tmp_path / "aside"
    async with server, dial(server) as line:
        await fill(line, "app", 2)
        shutil.copytree(directory, aside)
        await fill(line, "app", 3)
        await line.until("first", 3, "app")
        wait_for_files(server, {"app": 2})
        if is_killed:
            server.kill()
        else:
            assert server.stop() == 0
    for path in aside.glob("0000000000000000000[01].*"):
        shutil.copy(path, directory / path.name)
    async with server, dial(server) as line:
        stats = await line.values(b"STATS app")
        assert (stats["first"], stats["next"], stats["damages"]) == ("3", "5", "0")
        await agree(line, server, "app")
        assert {f"{i:020d}.log" for i in (0, 1)}.isdisjoint(read_files(directory))
        await line.send(b"READ app 1 1\r\n")
        await line.expect(b"ERR out-of-range first=3 next=5\r\n")


async def test_ids_survive_retention_and_a_kill(tmp_path: Path) -> None:
    server = running(tmp_path, partition_bytes=1, max_partitions=1)
    async with server, dial(server) as line:
        for number in range(4):
            body = b"%d\n" % number
            await line.send(push("app", body, f"id=p:{number}"))
            await line.expect(b"OK %d 1\r\n" % number)
        await line.until("first", 3, "app")
        wait_for_files(server, {"app": 1})
        server.kill()
    async with server, dial(server) as line:
        await line.send(push("app", b"0\n", "id=p:0") + push("app", b"x\n", "id=p:1"))
        await line.expect(b"OK 0 1\r\nERR conflict ")
        await line.read_line()
        assert (await line.ask(push("app", b"9\n", "id=p:9"))).head.startswith(
            b"ERR out-of-order last=3 "
        )
        await line.send(push("app", b"4\n", "id=p:4"))
        await line.expect(b"OK 4 1\r\n")
