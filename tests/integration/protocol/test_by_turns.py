"""Pushes to several topics by turns over one connection: each gets its own answer, in its turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.support.daemon import HANG_S, Daemon, dial, messages, push, running

TOPICS = 16
ROUNDS = 200


def name(i: int) -> str:
    return f"t{i % TOPICS:02}"


@pytest.mark.parametrize("fsync", ["never", "interval", "batches", "always"])
async def test_answers_come_in_order_and_messages_too(tmp_path: Path, fsync: str) -> None:
    count = TOPICS * ROUNDS
    sent = b"".join(push(name(i * 7), b"%d\n" % i) for i in range(count))
    async with running(tmp_path, fsync=fsync) as server, dial(server) as line:
        sending = asyncio.ensure_future(line.send(sent))
        due = Counter[str]()
        async with asyncio.timeout(HANG_S):
            for i in range(count):
                assert await line.read_line() == b"OK %d 1" % due[name(i * 7)]
                due[name(i * 7)] += 1
            await sending
        for topic in range(TOPICS):
            reply = await line.ask(b"READ %s 0 %d\r\n" % (name(topic).encode(), count))
            numbers = [int(message) for message in messages(reply.body)]
            assert numbers == [i for i in range(count) if name(i * 7) == name(topic)]


async def test_two_connections_by_turns_share_their_topics(daemon: Daemon) -> None:
    sent = b"".join(push(name(i), b"%d\n" % i) for i in range(TOPICS * ROUNDS))

    async def push_all() -> Counter[bytes]:
        async with dial(daemon) as line:
            sending = asyncio.ensure_future(line.send(sent))
            answers = Counter([await line.read_line() for _ in range(TOPICS * ROUNDS)])
            await sending
            return answers

    async with asyncio.timeout(HANG_S):
        first, second = await asyncio.gather(push_all(), push_all())
    assert first + second == Counter({b"OK %d 1" % offset: TOPICS for offset in range(2 * ROUNDS)})


async def test_a_topic_that_refuses_does_not_disturb_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, max_topics=2) as server, dial(server) as line:
        for topic in ("a", "b"):
            assert (await line.ask(push(topic, b"first\n"))).head == b"OK 0 1"
        await line.send(b"".join(push(topic, b"x\n") for topic in "abcabcb"))
        answers = [await line.read_line() for _ in range(7)]
        assert [answer.split()[0] for answer in answers] == b"OK OK ERR OK OK ERR OK".split()
        assert [answers[i] for i in (0, 1, 3, 4, 6)] == [
            b"OK 1 1", b"OK 1 1", b"OK 2 1", b"OK 2 1", b"OK 3 1",
        ]  # fmt: skip
        assert all(answers[i].startswith(b"ERR topic-limit ") for i in (2, 5))
        assert await line.stat("refused") == 2


async def test_what_is_asked_behind_them_sees_them_all(daemon: Daemon) -> None:
    async with dial(daemon) as line:
        await line.send(
            b"".join(push(topic, b"x\n") for topic in "abab")
            + b"READ a 0 9\r\n"
            + push("a", b"y\n")
        )
        assert [await line.read_line() for _ in range(4)] == [
            b"OK 0 1", b"OK 0 1", b"OK 1 1", b"OK 1 1",
        ]  # fmt: skip
        assert messages((await line.read_reply()).body) == [b"x", b"x"]
        assert await line.read_line() == b"OK 2 1"


async def test_who_may_push_to_some_topics_only(tmp_path: Path) -> None:
    async with running(tmp_path, max_topics_per_connection=2) as server, dial(server) as line:
        await line.send(b"".join(push(topic, b"x\n") for topic in "abcabcab"))
        answers = [(await line.read_line()).split()[0] for _ in range(8)]
        assert answers == b"OK OK ERR OK OK ERR OK OK".split()
