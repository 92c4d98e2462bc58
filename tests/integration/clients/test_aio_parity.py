"""The same scenarios for the blocking and the asyncio clients: same results, same errors.

What is generated from one source is tested on one kind only. Errors are raised out of `async with`
blocks, so that the ends of these are tested too.
"""

# ruff: noqa: PT012

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

import logd
from logd import aio
from logd.batch import body_sum
from logd.errors import (
    BadRequest,
    BadTopic,
    Busy,
    Conflict,
    Internal,
    LogdError,
    NotFound,
    OutOfRange,
    TooLarge,
)
from logd.wire.addresses import ConnectionLost
from logd.wire.commands import CursorInfo, PartitionInfo, Pushed, TopicInfo
from logd.wire.requests import At
from tests.integration.clients.aio_kinds import Kind, each, on_each, on_one, opened, run, value
from tests.integration.clients.aio_peers import HANG_UP, LOSE, Fake, text
from tests.support.listener import nobody
from tests.support.proxy import Proxy, cuts

OK = b"OK\r\n"
LIMIT_S = 0.5  # of silence


# -- names ----------------------------------------------------------------------------------------


def parameters(method: Any) -> list[tuple[str, object]]:
    return [(p.name, p.default) for p in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize("name", ["Client", "Writer", "Reader"])
def test_they_have_the_same_methods_with_the_same_parameters(name: str) -> None:
    blocking, other = getattr(logd, name), getattr(aio, name)
    only_blocking = {"receive", "detach", "readable"}  # sending and taking in two steps
    only_blocking |= {"interrupt", "abandon", "followed"}  # for threads and forked children
    between_modules = {"add_due", "failed"}
    for method in set(dir(blocking)) - only_blocking - between_modules:
        if not method.startswith("_") and callable(getattr(blocking, method)):
            assert parameters(getattr(blocking, method)) == parameters(getattr(other, method))
    if name != "Reader":  # whose parameters hold functions that are made anew
        assert parameters(blocking.__init__) == parameters(other.__init__)
    assert [p for p, _ in parameters(blocking)] == [p for p, _ in parameters(other)]


# -- Client ---------------------------------------------------------------------------------------

SAY: list[tuple[Callable[[Any], object], bytes, bytes, object]] = [
    (lambda c: c.ping(), b"PING\r\n", OK, None),
    (lambda c: c.help(), b"HELP\r\n", text("words\n"), "words\n"),
    (lambda c: c.stats(), b"STATS\r\n", text("a: 1\nb: x: y\n"), {"a": "1", "b": "x: y"}),
    (lambda c: c.stats("app"), b"STATS app\r\n", text("next: 3\n"), {"next": "3"}),
    (lambda c: c.config(), b"CONFIG\r\n", text("fsync: always\n"), {"fsync": "always"}),
    (lambda c: c.topics(), b"TOPICS *\r\n", text(""), []),
    (
        lambda c: c.topics("a?"), b"TOPICS a?\r\n",
        text("app 1 2 3 4\n"), [TopicInfo("app", 1, 2, 3, 4)],
    ),
    (
        lambda c: c.partitions("app"), b"PARTITIONS app\r\n",
        text("0 5 9 1 2\n"), [PartitionInfo(0, 5, 9, 1, 2)],
    ),
    (lambda c: c.read("app", At(9), 2), b"READ app @9 2\r\n", b"BATCHES 7 1 1\r\na", (7, 1, b"a")),
    (
        lambda c: c.read("app", "first", 1, max_bytes=5, wait_ms=99_000),
        b"READ app first 1 bytes=5 wait=60000\r\n", b"BATCHES 0 0 0\r\n", (0, 0, b""),
    ),
    (lambda c: c.tail("app", 3), b"TAIL app 3\r\n", b"BATCHES 4 3 1\r\nx", (4, 3, b"x")),
    (
        lambda c: c.push("app", [b"a", b"b"]),
        b"PUSH app 4 sum=%s\r\n" % body_sum(b"a\nb\n").encode(), b"OK 8 2\r\n", Pushed(8, 2),
    ),
    (lambda c: c.cursor("app", "me"), b"CURSOR app me\r\n", b"OK 5 3\r\n", CursorInfo(5, 3)),
    (lambda c: c.commit("app", "me", 7), b"COMMIT app me 7\r\n", b"OK 7 1\r\n", CursorInfo(7, 1)),
]  # fmt: skip


@on_each
def test_what_each_command_sends_and_makes_of_its_reply(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            for call, line, reply, result in SAY:
                peer.wrong.append((line.split()[0], reply))
                assert await value(call(client)) == result
                assert peer.lines.pop() == line

    with Fake() as peer:
        run(kind, scenario)


@on_each
@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (b"ERR not-found no topic app\r\n", NotFound, "no topic app"),
        (b"ERR out-of-range first=3 next=9\r\n", OutOfRange, "first=3 next=9"),
        (b"ERR busy later\r\n", Busy, "later"),
        (b"ERR something-new of the future\r\n", LogdError, "something-new of the future"),
        (text("0 x\n"), Internal, "does not have 5 numbers"),
    ],
)
def test_what_is_refused_raises_and_the_connection_goes_on(
    kind: Kind, line: bytes, error: type[LogdError], message: str
) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            with pytest.raises(error, match=message):
                await value(client.partitions("app"))
            await value(client.ping())

    with Fake(wrong=[(b"PARTITIONS", line)]) as peer:
        run(kind, scenario)


@on_each
@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (HANG_UP, "closed the connection|reset"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is an HTTP port; give the TCP port"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "speaks TLS; write tls://"),
        (b"220 mail.example ESMTP\r\n", "is not logd .*check the address"),
        (text("hello"), "answered TEXT"),
        (b"BATCHES 0 1 1073741825\r\n", "announced a reply of 1073741825 bytes"),
        (b"x" * 9000, "no end of line"),
    ],
)
def test_a_broken_answer_names_the_address_and_ends_the_client(
    kind: Kind, reply: bytes, says: str
) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            with pytest.raises(ConnectionLost, match=says) as caught:
                await value(client.read("app"))
            assert peer.address in str(caught.value)
            with pytest.raises(ConnectionLost, match="make a new Client"):
                await value(client.ping())

    with Fake([b"x"], wrong=[(b"READ", reply)]) as peer:
        run(kind, scenario)


@on_each
@pytest.mark.parametrize("size", [0, 1, 14, 20, 90])
def test_a_reply_that_ends_early(kind: Kind, size: int) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(proxy.address)) as client:
            middle = " in the middle of a reply|reset" if size else "closed the connection|reset"
            with pytest.raises(ConnectionLost, match=middle):
                await value(client.read("app"))

    with Fake([b"x" * 100]) as peer, Proxy(peer.address, cuts(size)) as proxy:
        run(kind, scenario)


@on_each
def test_an_error_that_closes_ends_the_client(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            with pytest.raises(TooLarge):
                await value(client.push("app", [b"x" * 100]))
            with pytest.raises(ConnectionLost, match="make a new Client"):
                await value(client.ping())

    with Fake(wrong=[(b"PUSH", b"ERR too-large a batch is at most 8 bytes\r\n")]) as peer:
        run(kind, scenario)


@on_each
def test_what_the_daemon_says_before_it_is_asked_is_the_answer(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            with pytest.raises(Busy, match="too many"):
                await value(client.ping())

    with Fake() as peer:
        peer.greeting = b"ERR busy too many connections\r\n"
        peer.wrong = [(b"PING", HANG_UP)]
        run(kind, scenario)


@on_each
def test_nobody_there_and_then_somebody(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        for target in (empty, "a..b:1774"):
            with pytest.raises(ConnectionLost, match="no logd answers"):
                async with opened(kind.Client(target)):
                    pass
        for targets in ([empty, peer.address], f"{empty},{peer.address}"):
            async with opened(kind.Client(targets)) as client:
                await value(client.ping())
                assert client.address == peer.address
        with pytest.raises(ValueError, match="at least one address"):
            kind.Client([])

    with nobody() as empty, Fake() as peer:
        run(kind, scenario)


@on_each
def test_silence_is_a_lost_connection(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address, timeout_s=LIMIT_S)) as client:
            threading.Timer(2 * LIMIT_S, peer.store, [[b"y"]]).start()
            # Longer than the limit, as asked.
            assert (await value(client.read("app", 1, 1, wait_ms=60_000))).messages == 1
            with pytest.raises(ConnectionLost, match="did not answer in time"):
                await value(client.topics())

    with Fake([b"x"], wrong=[(b"TOPICS", b"TEXT")]) as peer:
        run(kind, scenario)


@on_each
def test_words_that_could_be_a_second_command_are_not_sent(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            for topic in ("", "a b", "a\r\nPUSH x 1", "../x", "ä", "\udcff", "a" * 129):
                for call in (client.read, client.stats, client.partitions):
                    with pytest.raises(BadTopic):
                        await value(call(topic))
            for where in ("first 1\r\nPING", "\udcff"):
                with pytest.raises(BadRequest):
                    await value(client.read("app", where))
            with pytest.raises(BadRequest):
                await value(client.topics("* \r\nPING"))
            with pytest.raises(BadRequest, match="at least one message"):
                await value(client.push("app", []))
            await value(client.ping())

    with Fake() as peer:
        run(kind, scenario)
        assert peer.lines == [b"PING\r\n"]


@on_each
def test_large_bodies_both_ways(kind: Kind) -> None:
    message = bytes(range(256)) * 20_000

    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            assert await value(client.push("app", [message])) == (0, 1)
            found = await value(client.read("app"))
            assert bytes(found.data).endswith(message)

    with Fake() as peer:
        run(kind, scenario)


# -- Writer ---------------------------------------------------------------------------------------

MESSAGES = [b"message %d" % n for n in range(40)]


@on_each
@pytest.mark.parametrize(
    "wrong",
    [
        [(b"PUSH", HANG_UP)],
        [(b"PUSH", LOSE)],
        [(b"PUSH", b"ERR no-space wait\r\n")],
        [(b"PUSH", b"ERR busy a\r\n"), (b"PUSH", b"ERR shutting-down b\r\n"), (b"PUSH", LOSE)],
        [(b"PUSH", b"HTTP/1.1 400 Bad Request\r\n")],
        [(b"PUSH", b"TEXT 3\r\nabc")],
        [(b"PUSH", b"ERR checksum again\r\n"), (b"PUSH", HANG_UP), (b"STATS", HANG_UP)],
        [(b"PUSH", LOSE), (b"STATS", b"ERR busy wait\r\n"), (b"STATS", b"TEXT 4\r\na: b")],
    ],
)  # fmt: skip
def test_whatever_comes_between_each_message_is_stored_once_and_in_order(
    kind: Kind, wrong: list[tuple[bytes, bytes]]
) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Writer(peer.address, "app", batch_bytes=50)) as writer:
            for message in MESSAGES[:20]:
                await value(writer.write(message))
            peer.wrong += wrong
            for message in MESSAGES[20:]:
                await value(writer.write(message))
            await value(writer.flush())
            assert (writer.acknowledged, writer.first_offset, writer.next_offset) == (40, 0, 40)

    with Fake() as peer:
        run(kind, scenario)
        assert peer.messages == MESSAGES
        assert peer.wrong == []


@on_each
@pytest.mark.parametrize("size", [0, 10, *range(50, 110, 7)])
def test_cut_at_any_byte_of_the_replies(kind: Kind, size: int) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Writer(proxy.address, "app", connect="later", batch_bytes=50)) as w:
            for message in MESSAGES:
                await value(w.write(message))

    with Fake() as peer, Proxy(peer.address, cuts(size, 200)) as proxy:
        run(kind, scenario)
        assert peer.messages == MESSAGES


@on_each
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"ERR bad-request no\r\n", BadRequest),
        (b"ERR too-large no\r\n", TooLarge),
        (b"ERR not-found no\r\n", NotFound),
        (b"ERR conflict not yours\r\n", Conflict),
        (b"ERR out-of-order last=99\r\n", LogdError),
        (b"OK 0 7\r\n", Internal),
    ],
)
def test_what_ends_a_writer_is_raised_by_every_later_call(
    kind: Kind, answer: bytes, error: type[Exception]
) -> None:
    async def scenario(kind: Kind) -> None:
        writer = kind.Writer(peer.address, "app", producer="me", linger_s=None)
        with pytest.raises(error):
            async with opened(writer):
                await value(writer.write(b"x"))
                for call in (writer.flush, writer.flush, lambda: writer.write(b"y")):
                    with pytest.raises(error):
                        await value(call())
        with pytest.raises((error, ValueError)):
            await value(writer.write(b"z"))

    with Fake([b"there"], wrong=[(b"PUSH", answer)]) as peer:
        run(kind, scenario)
        assert peer.messages == [b"there"]


@on_each
def test_a_refused_batch_is_told_and_the_others_are_stored(kind: Kind) -> None:
    refused: list[tuple[int, str]] = []

    def hear(messages: int, error: LogdError) -> None:
        refused.append((messages, error.code))

    async def scenario(kind: Kind) -> None:
        async with opened(
            kind.Writer(peer.address, "app", batch_bytes=50, linger_s=None, on_refused=hear)
        ) as writer:
            for message in MESSAGES:
                await value(writer.write(message))

    with Fake(wrong=[(b"PUSH", b"ERR bad-request no\r\n")]) as peer:
        run(kind, scenario)
        assert peer.messages == MESSAGES[5:]
    assert refused == [(5, "bad-request")]


@on_each
def test_waiting_for_room(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Writer(peer.address, "app", batch_bytes=50, queue_bytes=60)) as w:
            await value(w.write_many(MESSAGES))

    with Fake(wrong=[(b"PUSH", LOSE)]) as peer:
        run(kind, scenario)
        assert peer.messages == MESSAGES


# -- Reader ---------------------------------------------------------------------------------------


async def offsets(kind: Kind, *words: Any, **options: Any) -> list[int]:
    async with opened(kind.Reader(*words, **options)) as reader:
        found = [message async for message in each(reader)]
    assert all(message.value == b"%d" % message.offset for message in found)
    return [message.offset for message in found]


def numbered(*counts: int, first: int = 0) -> Fake:
    """Each message is its own offset."""
    peer = Fake()
    peer.first = peer.next = first
    for count in counts:
        peer.store([b"%d" % n for n in range(peer.next, peer.next + count)])
    return peer


@on_each
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"start": 4, "limit": 3}, range(4, 7)),
        ({"follow": True, "until": 11, "start": 7}, range(7, 11)),
        ({"follow": True, "until_ms": 1}, []),
    ],
)
def test_exactly_what_was_asked_for(
    kind: Kind, options: dict[str, Any], wanted: range | list[int]
) -> None:
    with numbered(1, 2, 3, 1, 5) as peer:
        found = run(kind, lambda kind: offsets(kind, peer.address, "app", **options))
        assert found == list(wanted)


@on_each
@pytest.mark.parametrize("size", range(0, 330, 37))
def test_reading_over_a_cut_at_any_byte(kind: Kind, size: int) -> None:
    with numbered(1, 2, 3, 1, 5) as peer, Proxy(peer.address, cuts(200, size, size)) as proxy:
        found = run(kind, lambda kind: offsets(kind, proxy.address, "app"))
        assert found == list(range(12))


@on_one
@pytest.mark.parametrize(
    "wrong",
    [
        [(b"READ", HANG_UP)],
        [(b"READ", b"ERR busy wait\r\n")],
        [(b"READ", b"ERR shutting-down wait\r\n"), (b"READ", b"garbage\r\n"), (b"STATS", HANG_UP)],
        [(b"READ", b"OK 0 1\r\n")],
    ],
)
def test_reading_goes_on_whatever_comes_between(
    kind: Kind, wrong: list[tuple[bytes, bytes]]
) -> None:
    troubles: list[Exception] = []
    with numbered(1, 2, 3, 1, 5) as peer:
        peer.wrong += wrong
        found = run(
            kind, lambda kind: offsets(kind, peer.address, "app", on_trouble=troubles.append)
        )
        assert found == list(range(12))
    assert len(troubles) == len(wrong)


@on_one
def test_a_follower_whose_time_is_up_does_not_try_for_ever(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(kind: Kind) -> None:
        with pytest.raises(ConnectionLost):
            await offsets(kind, peer.address, "app", follow=True, until_ms=1, patience_s=None)

    for module in ("logd.client.read_loop", "logd.client.aio.read_loop"):
        monkeypatch.setattr(f"{module}.PATIENCE_S", 0.2)
    with numbered(1) as peer:
        peer.wrong += [(b"READ", HANG_UP)] * 100
        run(kind, scenario)


@on_one
def test_what_was_read_and_lost_by_the_daemon_is_told_and_read_anew(kind: Kind) -> None:
    async def scenario(kind: Kind) -> list[int]:
        found: list[int] = []
        async with opened(
            kind.Reader(peer.address, "app", follow=True, limit=8, on_gap=gaps.append)
        ) as reader:
            async for message in each(reader):
                found.append(message.offset)
                if len(found) == 5:
                    peer.cut()
                    peer.batches[2:], peer.next = [], 3
                    peer.epoch, peer.began = 2, 3
                    peer.store([b"3", b"4", b"5"])
        return found

    gaps: list[Any] = []
    with numbered(1, 2, 2) as peer:
        assert run(kind, scenario) == [0, 1, 2, 3, 4, 3, 4, 5]
    assert gaps == [(3, 2)]
    assert "used again" in str(gaps[0])


@on_each
def test_patience_of_a_reader(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        with pytest.raises(ConnectionLost):
            async with opened(kind.Reader(proxy.address, "app", patience_s=0.2)) as reader:
                proxy.target = empty
                proxy.cut()
                async for _ in each(reader):
                    pass

    with nobody() as empty, numbered(3) as peer, Proxy(peer.address) as proxy:
        run(kind, scenario)


@on_each
@pytest.mark.parametrize("by", ["name", "file"])
def test_a_cursor_goes_on_where_the_last_reader_stopped(kind: Kind, by: str, tmp_path: Any) -> None:
    cursor = "me" if by == "name" else tmp_path / "cursor"

    async def read(kind: Kind, count: int, *, commits: bool = False) -> list[int]:
        found: list[int] = []
        async with opened(kind.Reader(peer.address, "app", cursor=cursor)) as reader:
            async for message in each(reader):
                found.append(message.offset)
                if len(found) == count:
                    if commits:
                        await value(reader.commit())
                    break
        return found

    async def scenario(kind: Kind) -> None:
        assert await read(kind, 3) == [0, 1, 2]
        assert await read(kind, 2) == [2, 3]  # 2 was handed out last, and may not be done
        assert await read(kind, 2, commits=True) == [3, 4]
        assert await read(kind, 9) == [5, 6]
        assert await read(kind, 9) == []
        peer.store([b"7"])
        assert await read(kind, 9) == [7]

    with numbered(1, 2, 4) as peer:
        run(kind, scenario)


@on_one
def test_a_cursor_by_batches_and_to_any_offset(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Reader(peer.address, "app", cursor="me")) as reader:
            async for batch in each(reader.batches()):
                if batch.offset == 3:
                    break
        assert peer.cursors == {b"me": 3}
        async with opened(kind.Reader(peer.address, "app", cursor="me")) as reader:
            await value(reader.commit(5))
            assert peer.cursors == {b"me": 5}
        with pytest.raises(ValueError, match="no cursor"):
            async with opened(kind.Reader(peer.address, "app")) as reader:
                await value(reader.commit())

    with numbered(1, 2, 4) as peer:
        run(kind, scenario)


@on_one
def test_a_program_that_says_what_it_has_consumed(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        consumed: list[int | None] = [None]
        options: dict[str, Any] = {"cursor": "me", "consumed": lambda: consumed[0]}
        async with opened(kind.Reader(peer.address, "app", **options)) as reader:
            assert reader.resumed_at is None
            assert [message.offset async for message in each(reader)] == list(range(7))
        assert peer.cursors == {}  # all was handed out, and nothing consumed
        async with opened(kind.Reader(peer.address, "app", **options)) as reader:
            async for message in each(reader):
                consumed[0] = message.offset // 2
        assert peer.cursors == {b"me": 3}
        async with opened(kind.Reader(peer.address, "app", **options)) as reader:
            assert reader.resumed_at == 3

    with numbered(1, 2, 4) as peer:
        run(kind, scenario)


@on_one
def test_a_cursor_that_cannot_be_saved_now_is_saved_later(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logd.client.read_progress.SAVE_S", 0.0)
    troubles: list[Exception] = []

    async def scenario(kind: Kind) -> None:
        reader = kind.Reader(peer.address, "app", cursor="me", on_trouble=troubles.append)
        async with opened(reader):
            assert [m.offset async for m in each(reader)] == list(range(7))

    with numbered(1, 2, 4) as peer:
        peer.wrong = [(b"COMMIT", b"ERR busy wait\r\n"), (b"COMMIT", HANG_UP)]
        run(kind, scenario)
        assert peer.cursors == {b"me": 7}
    assert [type(trouble) for trouble in troubles] == [Busy]


@on_one
def test_a_cursor_of_another_topic_is_refused(kind: Kind, tmp_path: Any) -> None:
    async def scenario(kind: Kind) -> None:
        path = tmp_path / "cursor"
        for content, says in (
            ("{}", "not a cursor file"),
            ("garbage", "not a cursor file"),
            ('{"topic": "other", "offset": 3}', "belongs to topic other"),
            ('{"topic": "app", "offset": 3, "id": "x", "epoch": 1}', "created again"),
        ):
            path.write_text(content)
            with pytest.raises(BadRequest, match=says):
                async with opened(kind.Reader(peer.address, "app", cursor=path)):
                    pass
        with pytest.raises(BadRequest):
            async with opened(kind.Reader(peer.address, "app", cursor="a b")):
                pass

    with numbered(3) as peer:
        run(kind, scenario)


@on_each
def test_on_a_client_that_it_was_given(kind: Kind) -> None:
    async def scenario(kind: Kind) -> None:
        async with opened(kind.Client(peer.address)) as client:
            async with opened(kind.Reader(client, "app", start=1)) as reader:
                async for message in each(reader):
                    if message.offset == 4:
                        break
            assert client.in_flight == 0
            await value(client.ping())
            with pytest.raises(ValueError, match="needs an address"):
                kind.Reader(client, "app", cursor="me")
            peer.wrong = [(b"READ", HANG_UP)]
            with pytest.raises(ConnectionLost):
                async with opened(kind.Reader(client, "app")) as reader:
                    async for _ in each(reader):
                        pass

    with numbered(1, 2, 4) as peer:
        run(kind, scenario)
