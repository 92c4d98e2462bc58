"""Single messages: taken only where their reply is the next one due, as source and as compiled."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest

from logd.batch import JOIN_BYTES, SMALL_BYTES
from logd.errors import BadRequest, LogdError
from logd.protocol import Budget, Parser
from tests.unit.compiled import forms, source

PUSH = b"PUSH app 6\r\nhello\n"
MOST = 20


FORMS = forms("storage.single_push")
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("logd._native") is None,
    reason="no compiler where this was installed: all is left to the transport",
)


class Topic:
    def __init__(self, module: ModuleType) -> None:
        self.called = 0
        self.singles = module.Singles("app", self._call)

    def _call(self) -> None:
        self.called += 1


class Slot:
    offset = 0

    def __init__(self, story: list[Any]) -> None:
        self._story = story

    def stored(self) -> None:
        self._story.append(("slot", self.offset))

    def refused(self, error: LogdError) -> None:
        self._story.append(("refused", error.code))


def connection(module: ModuleType, topic: Topic) -> Any:
    class Connection(module.SinglePushConnection):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.story: list[Any] = []
            self.write = self.story.append
            self.add_route(b"PUSH app ", MOST, topic.singles)

        def make_single_slot(self) -> Slot:
            slot = Slot(self.story)
            self.slots.append(slot)
            return slot

        def finish_single_reply(self, offset: int, sent: int) -> None:
            self.write((b"OK %d 1\r\n" % offset)[sent:])

        def advance(self) -> None:
            self.story.append("advance")

        def feed(self, data: bytes) -> None:
            self.story.append(("fed", data))

    return Connection()


@pytest.mark.parametrize("module", FORMS)
def test_one_more_of_the_same_is_taken_and_answered(module: ModuleType) -> None:
    topic = Topic(module)
    one, two = connection(module, topic), connection(module, topic)
    assert one.take_single(b"PUSH app 6\r\nfirst\n")
    assert two.take_single(b"PUSH app 6\r\nother\n")
    assert topic.called == 1
    (push,) = topic.singles.take()
    assert push.content == ("app", [b"first\nother\n"], [2])
    assert (push.clients, len(topic.singles)) == (2, 0)
    push.offset = 7
    push.stored()
    assert (one.story, two.story) == ([b"OK 7 1\r\n"], [b"OK 8 1\r\n"])
    assert one.take_single(PUSH)
    assert topic.called == 2


@pytest.mark.parametrize("module", FORMS)
def test_one_by_itself_is_taken_and_answered(module: ModuleType) -> None:
    topic = Topic(module)
    one = connection(module, topic)
    for n in range(3):
        assert one.take_single(PUSH)
        assert topic.called == n + 1
        assert topic.singles.take_one() == (b"hello\n", one)
        assert len(topic.singles) == 0
        module.answer_one(one, 7 + n)
        assert one.story.pop() == b"OK %d 1\r\n" % (7 + n)


@pytest.mark.parametrize("module", FORMS)
@pytest.mark.parametrize(
    "data",
    [
        b"PUSH app 6\r\nhell\n",
        b"PUSH app 6\r\nhello!",
        b"PUSH app 6\r\nhel\no\n",
        b"PUSH bpp 6\r\nhello\n",
        b"PUSH app 6\r\nhello\nP",
        PUSH + PUSH,
        PUSH[:-1],
        b"PUSH app 0\r\n",
        b"PUSH app 1\r\n",
        b"PUSH app \r\nhello\n",
        b"PUSH app\r\nhello\n",
        b"PUSH app 6 enc=lines\r\nhello\n",
        b"PUSH app 6\rhello\n",
        b"PUSH app 21\r\n" + b"x" * 20 + b"\n",
        b"PUSH app 00000000000000000006\r\nhello\n",
        b"PUSH app +6\r\nhello\n",
        b"push app 6\r\nhello\n",
        b"PING\r\n",
        b"",
    ],
)
def test_anything_else_is_left_to_the_parser(module: ModuleType, data: bytes) -> None:
    topic = Topic(module)
    assert not connection(module, topic).take_single(data)
    assert len(topic.singles) == 0


@pytest.mark.parametrize("module", FORMS)
@pytest.mark.parametrize("body", [b"\n", b"x\n", b"ten bytes\n", b"x" * (MOST - 1) + b"\n"])
@pytest.mark.parametrize("line", [b"PUSH app %d\r\n", b"PUSH app %d\n", b"PUSH app %019d\r\n"])
def test_messages_of_any_size_are_taken(module: ModuleType, body: bytes, line: bytes) -> None:
    topic = Topic(module)
    assert connection(module, topic).take_single(line % len(body) + body)
    (push,) = topic.singles.take()
    assert push.content == ("app", [body], [1])


@pytest.mark.parametrize("module", FORMS)
def test_each_topic_that_was_pushed_to_has_its_way(module: ModuleType) -> None:
    topics = {name: Topic(module) for name in ("app", "web", "a" * 128)}
    made = connection(module, topics["app"])
    for name, topic in topics.items():
        made.add_route(b"PUSH %s " % name.encode(), MOST, topic.singles)
    for name, topic in [*topics.items(), *topics.items()]:
        assert made.take_single(b"PUSH %s 6\r\nhello\n" % name.encode())
        made.single_stored(0)
        assert [len(push.waiting) for push in topic.singles.take()] == [1]
    assert not made.take_single(b"PUSH other 6\r\nhello\n")
    topics["web"].singles.is_open = False
    assert not made.take_single(b"PUSH web 6\r\nhello\n")
    assert not made.take_single(b"PUSH web 7\r\nhello\n")
    assert made.take_single(PUSH)


@pytest.mark.parametrize("module", FORMS)
def test_no_more_ways_are_kept_than_a_bound(module: ModuleType) -> None:
    made = connection(module, Topic(module))
    for i in range(1000):
        topic = Topic(module)
        made.add_route(b"PUSH t%d " % i, MOST, topic.singles)
        assert len(made.routes) <= 64
        assert made.take_single(b"PUSH t%d 2\r\nx\n" % i)
        made.single_stored(0)


@pytest.mark.parametrize("fed", [b"", b"PING\r\n", PUSH + b"PI", PUSH + b"PING\r\n", PUSH[:-1]])
def test_only_behind_a_push_and_nothing_else(fed: bytes) -> None:
    parser = Parser(1 << 20, Budget(1 << 20))
    parser.feed(PUSH)
    assert parser.repeatable == ("app", b"PUSH app ", SMALL_BYTES)
    parser.feed(PUSH + fed)
    assert (parser.repeatable is None) == bool(fed)


@pytest.mark.parametrize("module", FORMS)
def test_what_is_no_single_is_fed(module: ModuleType) -> None:
    made = connection(module, Topic(module))
    made.data_received(b"PING\r\n")
    made.data_received(PUSH)
    made.data_received(PUSH)
    assert made.story == [("fed", b"PING\r\n"), ("fed", PUSH)]  # the second is behind a single


@pytest.mark.parametrize("module", FORMS)
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("slots", deque(["a push"])),
        ("queue", deque(["a request"])),
        ("is_held", True),
        ("is_write_paused", True),
        ("is_ending", True),
        ("is_closing", True),
        ("has_single", True),
        ("route", None),
    ],
)
def test_not_while_something_is_under_way(module: ModuleType, flag: str, value: Any) -> None:
    made = connection(module, Topic(module))
    setattr(made, flag, value)
    assert not made.take_single(PUSH)


@pytest.mark.parametrize("module", FORMS)
def test_what_comes_behind_a_single_gives_it_a_slot(module: ModuleType) -> None:
    made = connection(module, Topic(module))
    made.reserve_single_slot()
    assert not made.slots
    assert made.take_single(PUSH)
    made.reserve_single_slot()
    made.reserve_single_slot()
    assert len(made.slots) == 1
    made.single_stored(3)
    assert made.story == [("slot", 3)]
    assert not made.has_single


@pytest.mark.parametrize("module", FORMS)
def test_a_refusal_goes_through_a_slot(module: ModuleType) -> None:
    topic = Topic(module)
    made = connection(module, topic)
    made.take_single(PUSH)
    for push in topic.singles.take():
        push.refused(BadRequest("no"))
    assert made.story == [("refused", "bad-request")]
    assert not made.has_single


@pytest.mark.parametrize("module", FORMS)
def test_a_connection_that_is_gone_hears_nothing(module: ModuleType) -> None:
    made = connection(module, Topic(module))
    made.take_single(PUSH)
    made.is_closing = True
    made.single_stored(3)
    assert made.story == []


@pytest.mark.parametrize("module", FORMS)
def test_it_calls_when_there_are_as_many_as_wanted(module: ModuleType) -> None:
    topic = Topic(module)
    topic.singles.call_at = 3
    for _ in range(5):
        connection(module, topic).take_single(PUSH)
    assert topic.called == 1
    topic.singles.take()
    connection(module, topic).take_single(PUSH)
    assert topic.called == 2  # with nothing there, the first one calls


@pytest.mark.parametrize("module", FORMS)
def test_many_are_several_batches(module: ModuleType) -> None:
    topic = Topic(module)
    bodies = [b"%05d" % n + b"x" * (n % 100) + b"\n" for n in range(2000)]
    waiting = [connection(module, topic) for _ in bodies]
    for body, who in zip(bodies, waiting, strict=True):
        topic.singles.add(body, who)
    pushes = topic.singles.take()
    assert all(len(push.content.bodies[0]) <= JOIN_BYTES for push in pushes)
    assert b"".join(push.content.bodies[0] for push in pushes) == b"".join(bodies)
    offset = 0
    for push in pushes:
        assert push.content.counts == [push.clients]
        push.offset = offset
        push.stored()
        offset += push.clients
    assert [who.story for who in waiting] == [[b"OK %d 1\r\n" % n] for n in range(2000)]
    assert topic.singles.take() == []


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def stored_with(made: Any, topic: Topic, offset: int) -> None:
    assert made.take_single(PUSH)
    (push,) = topic.singles.take()
    push.offset = offset
    push.stored()


def fill(ours: socket.socket) -> None:
    """Leave no room in the socket."""
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(1000))


@needs_compiler
@pytest.mark.parametrize("module", FORMS)
def test_the_answer_goes_to_the_socket_itself(
    module: ModuleType, pair: tuple[socket.socket, socket.socket]
) -> None:
    topic = Topic(module)
    made = connection(module, topic)
    made.socket_fd = pair[0].fileno()
    for offset in (0, 7, 10, 1999, 2**63 - 2):
        stored_with(made, topic, offset)
        assert made.story == []
        assert pair[1].recv(100) == b"OK %d 1\r\n" % offset


@pytest.mark.parametrize("module", FORMS)
def test_what_the_socket_does_not_take_the_transport_gets(
    module: ModuleType, pair: tuple[socket.socket, socket.socket]
) -> None:
    topic = Topic(module)
    made, other = connection(module, topic), connection(module, topic)
    made.socket_fd = pair[0].fileno()
    fill(pair[0])
    assert other.take_single(PUSH)
    stored_with(made, topic, 6)
    assert made.story == [b"OK 7 1\r\n"]
    assert other.story == [b"OK 6 1\r\n"]
    pair[1].close()  # nobody is there any more: no signal, and the transport will find out
    stored_with(made, topic, 8)
    assert made.story == [b"OK 7 1\r\n", b"OK 8 1\r\n"]


@pytest.mark.parametrize("module", FORMS)
def test_half_an_answer_is_finished_by_the_transport(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(module)
    made = connection(module, topic)
    made.socket_fd = 99
    monkeypatch.setattr(module, "answer", lambda sockets, offset: [(0, 5)])
    stored_with(made, topic, 1234)
    assert made.story == [b"34 1\r\n"]


@pytest.mark.parametrize("module", FORMS)
def test_nothing_overtakes_what_the_transport_still_holds(
    module: ModuleType, pair: tuple[socket.socket, socket.socket]
) -> None:
    topic = Topic(module)
    made = connection(module, topic)
    made.socket_fd = pair[0].fileno()
    made.unwritten_bytes = lambda: 12
    stored_with(made, topic, 3)
    assert made.story == [b"OK 3 1\r\n"]
    made.unwritten_bytes, made.is_read_paused = lambda: 0, True
    stored_with(made, topic, 4)
    assert made.story[1:] == [b"OK 4 1\r\n", "advance"]


@needs_compiler
@pytest.mark.parametrize("module", FORMS)
def test_hundreds_are_answered_at_once(
    module: ModuleType, pair: tuple[socket.socket, socket.socket]
) -> None:
    topic = Topic(module)
    waiting = [connection(module, topic) for _ in range(200)]
    for i, who in enumerate(waiting):
        who.socket_fd = pair[0].fileno() if i % 3 else -1
        assert who.take_single(PUSH)
    (push,) = topic.singles.take()
    push.offset = 1000
    push.stored()
    replies = [b"OK %d 1\r\n" % (1000 + i) for i in range(200)]
    assert [who.story for who in waiting] == [[] if i % 3 else [r] for i, r in enumerate(replies)]
    assert pair[1].recv(1 << 16) == b"".join(r for i, r in enumerate(replies) if i % 3)


def test_without_a_compiler_all_is_left_to_the_transport(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "logd._native", None)
    module = source("storage.single_push")
    topic = Topic(module)
    made = connection(module, topic)
    made.socket_fd = pair[0].fileno()
    stored_with(made, topic, 3)
    assert made.story == [b"OK 3 1\r\n"]


@pytest.mark.parametrize("bad", [(), ([1],), ((1,), 0), ([1], -1), (["x"], 0), ([1], "x")])
def test_no_answer_without_sense(bad: Any) -> None:
    _lines = pytest.importorskip("logd._native", reason="no compiler where this was installed")
    with pytest.raises((TypeError, OverflowError)):
        _lines.answer(*bad)
