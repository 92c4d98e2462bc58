"""A daemon with one damaged topic: that one is read around its damage, the others do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from logd import Client, Reader
from logd.batch import reading, scan
from logd.errors import DamagedBatch, Faulted
from tests.integration.storage.corruptions import (
    BESIDE,
    BROKEN,
    MISPLACED,
    Corruption,
    flip_body,
    flip_header,
)
from tests.integration.storage.data_dirs import OTHER, data_dir, fill, snapshot
from tests.integration.storage.small_log import State
from tests.support.byte_sweep import flip
from tests.support.daemon import Line, dial, messages, push, running
from tests.support.long_run import LONG

ENDS_EARLY = next(c for c in BROKEN if c.name == "a sealed file ends early")  # 25 to 43 are lost


async def test_a_topic_with_damage_in_a_sealed_file(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    ENDS_EARLY.corrupt(data / "topics" / "app", clean)
    before = snapshot(data / "topics" / "app")
    server = running(tmp_path)
    async with server, dial(server) as line:
        assert "topic app is faulted: offsets 25 to 43 are damaged" in server.log
        await line.send(push("app", b"no\n") + push("other", b"yes\n") + b"PING\r\n")
        refused = await line.read_line()
        assert refused.startswith(b"ERR faulted first=25 next=44 ")
        await line.expect(b"OK 2 1\r\nOK\r\n")
        await line.send(b"PUSH app\r\nno\r\nPING\r\n")
        assert (await line.read_line()).startswith(b"ERR faulted first=25 next=44 ")
        await line.expect(b"OK\r\n")

        assert await read(line, b"0 1000") == (b"BATCHES 0 25 ", written(clean, 0, 25))
        assert await read(line, b"24 10") == (b"BATCHES 24 1 ", written(clean, 22, 25))
        assert await read(line, b"first 10 bytes=1") == (b"BATCHES 0 1 ", written(clean, 0, 1))
        assert await read(line, b"44 1000") == (b"BATCHES 44 32 ", written(clean, 44, 76))
        assert await read(line, b"next 5") == (b"BATCHES 76 0 ", b"")
        assert await line.ask(b"TAIL app 32\r\n") == await line.ask(b"READ app 44 32\r\n")
        for where in (b"25", b"36", b"43"):
            reply = await line.ask(b"READ app %s 1\r\n" % where)
            assert reply.head.startswith(b"ERR faulted first=25 next=44 ")
        reply = await line.ask(b"TAIL app 40\r\n")
        assert reply.head.startswith(b"ERR faulted first=25 next=44 ")
        await line.send(b"READ app 77 1\r\n")
        await line.expect(b"ERR out-of-range first=0 next=76\r\n")

        assert (await line.values(b"STATS"))["faulted_topics"] == "1"
        stats = await line.values(b"STATS app")
        assert (stats["damages"], stats["first"], stats["next"]) == ("1", "0", "76")
        assert (await line.values(b"STATS other"))["damages"] == "0"
        assert messages((await line.ask(b"READ other first 9\r\n")).body) == [*OTHER, b"yes"]
        with Client(server.address) as client, pytest.raises(Faulted):
            client.push("app", [b"no"])
        with Reader(server.address, "app") as reader, pytest.raises(Faulted):
            list(reader)
        assert server.stop() == 0
    assert snapshot(data / "topics" / "app") == before


async def read(line: Line, rest: bytes) -> tuple[bytes, bytes]:
    """The reply to a READ, without its number of bytes, which must be right."""
    reply = await line.ask(b"READ app %s\r\n" % rest)
    head, _, size = reply.head.rpartition(b" ")
    assert int(size) == len(reply.body)
    return head + b" ", reply.body


def written(state: State, first: int, next_: int) -> bytes:
    """The bytes of whole batches, as they were written."""
    return b"".join(
        part.data[batch.position : batch.end]
        for part in state.parts
        for batch in part.batches
        if first <= batch.first and batch.next <= next_
    )


SEEN = [c for c in (*MISPLACED, *BROKEN, *BESIDE) if c.seen_at_start]
SOME = ("the first file is missing", "the newest file is missing", "all files are missing",
        "the newest is swapped", "a sealed file is garbage", "the newest file ends early",
        "neither meta file nor checkpoint")  # fmt: skip


@pytest.mark.parametrize("corruption", [c for c in SEEN if LONG or c.name in SOME], ids=repr)
async def test_every_command_answers_for_a_faulted_topic(
    tmp_path: Path, clean: State, corruption: Corruption
) -> None:
    """None of them may end the connection, and none may take the other topic with it."""
    data = data_dir(tmp_path, clean)
    corruption.corrupt(data / "topics" / "app", clean)
    before = snapshot(data / "topics" / "app")[0]
    server = running(tmp_path)
    async with server, dial(server) as line:
        assert await line.stat("faulted_topics") == 1
        first, _ = corruption.lost(clean)[0]
        reply = await line.ask(b"PUSH app\r\nno\r\n")
        assert reply.head.startswith(b"ERR faulted first=%d next=" % first)
        for command in (b"STATS app", b"PARTITIONS app", b"TOPICS", b"STATS"):
            assert (await line.ask(command + b"\r\n")).head.startswith(b"TEXT "), command
        truth = {
            offset: message
            for batch in clean.batches
            for offset, message in enumerate(batch.messages, batch.first)
        }
        for offset in range(0, 76, 5):
            reply = await line.ask(b"READ app %d 1\r\n" % offset)
            if any(first <= offset < next_ for first, next_ in corruption.lost(clean)):
                assert reply.head.startswith(b"ERR faulted first="), (offset, reply.head)
            else:
                held = next(scan(reading(reply.body), 0, len(reply.body)))
                assert held.header.offset <= offset < held.header.next
                assert truth[offset] in bytes(held.body) or held.header.enc.endswith("zstd")
        await line.send(b"PUSH other\r\nyes\r\n")
        await line.expect(b"OK 2 1\r\n")
        assert server.stop() == 0
    after = snapshot(data / "topics" / "app")[0]
    assert {n: d for n, d in after.items() if not n.endswith(".index")} == {
        n: d for n, d in before.items() if not n.endswith(".index")
    }


async def test_damage_that_a_read_meets_is_refused_by_the_server_or_the_client(
    tmp_path: Path, clean: State
) -> None:
    """Sealed files are not read at the start: nothing is known of it before that."""
    data = data_dir(tmp_path, clean)
    flip_header(0, 9)(data / "topics" / "app", clean)
    flip_body(0, 2)(data / "topics" / "app", clean)
    server = running(tmp_path)
    async with server, dial(server) as line:
        assert await line.stat("faulted_topics") == 0
        reply = await line.ask(b"READ app 26 1\r\n")  # from 22, which is listed, over 25, to 26
        assert reply.head.startswith(b"ERR faulted "), reply.head
        await line.send(b"PING\r\n")
        await line.expect(b"OK\r\n")
        for start, before in ((0, 5), (7, 25)):
            taken: list[int] = []
            with Reader(server.address, "app", start=start) as reader:
                batches = reader.batches()
                with pytest.raises((DamagedBatch, Faulted)):
                    taken += [b.offset + i for b in batches for i in range(len(b.messages))]
                assert all(start <= offset < before for offset in taken)
        await line.send(b"PUSH app\r\nit takes writes\r\n")
        await line.expect(b"OK 76 1\r\n")


async def test_retention_takes_nothing_of_a_faulted_topic(tmp_path: Path, clean: State) -> None:
    data = data_dir(tmp_path, clean)
    ENDS_EARLY.corrupt(data / "topics" / "app", clean)
    before = snapshot(data / "topics" / "app")
    server = running(
        tmp_path, max_partitions=1, max_age="1s", max_bytes=1, partition_bytes=1,
        delete_hook=f"/bin/touch {tmp_path}/ran",
    )  # fmt: skip
    async with server, dial(server) as line:
        await line.send(b"PUSH other\r\none\r\nPUSH other\r\ntwo\r\n")
        await line.expect(b"OK 2 1\r\nOK 3 1\r\n")
        await line.until("partitions", 1, "other")  # retention has been around
        stats = await line.values(b"STATS app")
        assert (stats["partitions"], stats["expired_waiting"], stats["hook_running"]) == (
            "3", "0", "-",
        )  # fmt: skip
        assert server.stop() == 0
    assert snapshot(data / "topics" / "app") == before


async def test_damage_that_nobody_has_met_does_not_end_retention(
    tmp_path: Path, clean: State
) -> None:
    """Neither an index that is wrong nor a log from which it cannot be made anew."""
    data = data_dir(tmp_path, clean)
    flip_header(0, 9)(data / "topics" / "app", clean)
    index = data / "topics" / "app" / clean.parts[0].index_name
    index.write_bytes(flip(index.read_bytes(), 0))
    server = running(tmp_path, max_partitions=2, partition_bytes=1, delete_hook="/bin/true")
    async with server, dial(server) as line:
        assert await line.stat("faulted_topics") == 0
        await line.until("first", 44, "app")
        await fill(line, "other", 3)
        await line.until("first", 3, "other")
        assert server.stop() == 0
