"""The commands for clients: what to send, and how to read the reply.

No I/O: shared by the blocking and the asyncio client. Words that come from a program are checked
before they are sent, because a line end in one of them would start a second command. A reply that
does not belong to the command raises `NotLogd`, the end of a stream an `OSError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from logd.batch import Buffer, body_sum, compress, encode_body
from logd.errors import BadRequest, Internal
from logd.wire import requests
from logd.wire.replies import NotLogd, ReceivedReply
from logd.wire.requests import MAX_WAIT_MS, Follow, Push, Read, Where

HEARTBEAT_MS = 15_000  # how often the server sends something to a follower

T = TypeVar("T")


class Command(NamedTuple, Generic[T]):
    line: bytes
    body: Buffer
    answer: Callable[[ReceivedReply], T]
    wait_ms: int = 0  # how much later than usual its reply may come
    is_stream: bool = False  # it has further replies, until one is an error


class Pushed(NamedTuple):
    """Where a batch was stored: the offset of its first message, and its number of messages."""

    offset: int
    messages: int


class Batches(NamedTuple):
    """Whole batches as they are on disk. `offset`, the resolved start, may be inside the first."""

    offset: int
    messages: int
    data: bytes | bytearray


class TopicInfo(NamedTuple):
    topic: str
    first: int
    next: int
    bytes: int
    partitions: int


class PartitionInfo(NamedTuple):
    first: int
    next: int
    bytes: int
    min_time_ms: int
    max_time_ms: int


class CursorInfo(NamedTuple):
    """A cursor that the server stores: the next offset to read, and the messages after it."""

    offset: int
    lag: int


# -- the commands ---------------------------------------------------------------------------------


def push(push: Push) -> Command[Pushed]:
    checked_topic(push.topic)
    return Command(requests.push_line(push), push.body, _pushed)


def read(read: Read) -> Command[Batches]:
    wait_ms = min(read.wait_ms, MAX_WAIT_MS)
    topic, at = checked_topic(read.topic), checked_where(read.where)
    line = requests.read_line(read._replace(topic=topic, where=at, wait_ms=wait_ms))
    return Command(line, b"", _batches, wait_ms)


def follow(follow: Follow) -> Command[Batches]:
    topic, at = checked_topic(follow.topic), checked_where(follow.where)
    line = requests.follow_line(follow._replace(topic=topic, where=at))
    return Command(line, b"", _streamed, HEARTBEAT_MS, is_stream=True)


def tail(topic: str, messages: int) -> Command[Batches]:
    return Command(b"TAIL %s %d\r\n" % (_topic(topic), messages), b"", _batches)


def stats(topic: str | None = None) -> Command[dict[str, str]]:
    line = b"STATS\r\n" if topic is None else b"STATS %s\r\n" % _topic(topic)
    return Command(line, b"", _named)


def topics(glob: str = "*") -> Command[list[TopicInfo]]:
    return Command(b"TOPICS %s\r\n" % requests.topic_glob(_word(glob)).encode(), b"", _topics)


def partitions(topic: str) -> Command[list[PartitionInfo]]:
    return Command(b"PARTITIONS %s\r\n" % _topic(topic), b"", _partitions)


def cursor(topic: str, name: str) -> Command[CursorInfo]:
    return Command(b"CURSOR %s %s\r\n" % (_topic(topic), _cursor_name(name)), b"", _cursor)


def commit(topic: str, name: str, offset: int) -> Command[CursorInfo]:
    words = (_topic(topic), _cursor_name(name), offset)
    return Command(b"COMMIT %s %s %d\r\n" % words, b"", _cursor)


def introduction(line: bytes) -> Command[None]:
    """The AUTH line that `credentials` makes."""
    return Command(line, b"", _nothing)


# -- words --------------------------------------------------------------------------------------


def checked_topic(topic: str) -> str:
    """The topic name; BadTopic if it is not valid."""
    return requests.topic_name(_word(topic))


def checked_where(at: Where) -> Where:
    """The position; text may be "first", "next", "@<unix ms>" or an offset."""
    return requests.where(_word(at)) if isinstance(at, str) else at


def checked_cursor(name: str) -> str:
    return requests.cursor_name(_word(name))


def checked_producer(name: str) -> str:
    return requests.cursor_name(_word(name), "producer")


def _word(text: str) -> bytes:
    return bytes(text, "ascii", "backslashreplace")


def batch_of(topic: str, messages: Iterable[bytes], *, compressed: bool = False) -> Push:
    """A push of these messages as one batch."""
    batch: Sequence[bytes] = list(messages)
    if not batch:
        raise BadRequest("a batch holds at least one message")
    body, enc = encode_body(batch)
    return seal(topic, body, enc, compressed=compressed)


def seal(topic: str, body: bytes, enc: str, *, compressed: bool = False) -> Push:
    """A push of this body, with the checksum that protects it end to end."""
    if compressed:
        body, enc = compress(body, enc)
    return Push(topic, body, enc, sum=body_sum(body))


def _topic(topic: str) -> bytes:
    return checked_topic(topic).encode()


def _cursor_name(name: str) -> bytes:
    return checked_cursor(name).encode()


# -- replies ------------------------------------------------------------------------------------


def _expect(reply: ReceivedReply, word: str, numbers: int) -> ReceivedReply:
    if reply.word != word or len(reply.numbers) != numbers:
        raise NotLogd(f"it answered {reply.word} instead of {word}")
    return reply


def _pushed(reply: ReceivedReply) -> Pushed:
    return Pushed(*_expect(reply, "OK", 2).numbers)


def _batches(reply: ReceivedReply) -> Batches:
    offset, messages, _ = _expect(reply, "BATCHES", 3).numbers
    return Batches(offset, messages, reply.body)


def _streamed(reply: ReceivedReply) -> Batches:
    if reply.word == "END":
        raise OSError("it ended the stream")
    return _batches(reply)


def _cursor(reply: ReceivedReply) -> CursorInfo:
    return CursorInfo(*_expect(reply, "OK", 2).numbers)


def _nothing(reply: ReceivedReply) -> None:
    _expect(reply, "OK", 0)


def _text(reply: ReceivedReply) -> str:
    return _expect(reply, "TEXT", 1).body.decode("utf-8", "replace")


def _named(reply: ReceivedReply) -> dict[str, str]:
    pairs = (line.partition(": ") for line in _lines(reply))
    return {name: value for name, _, value in pairs}


def _topics(reply: ReceivedReply) -> list[TopicInfo]:
    lines = [line.split(" ") for line in _lines(reply)]
    return [TopicInfo(words[0], *_numbers(words[1:], 4)) for words in lines]


def _partitions(reply: ReceivedReply) -> list[PartitionInfo]:
    return [PartitionInfo(*_numbers(line.split(" "), 5)) for line in _lines(reply)]


def _lines(reply: ReceivedReply) -> list[str]:
    return [line for line in _text(reply).replace("\r", "").split("\n") if line]


def _numbers(words: list[str], count: int) -> list[int]:
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise Internal(f"the server sent a line that does not have {count} numbers: {words}")
    return numbers


CONFIG = Command(b"CONFIG\r\n", b"", _named)
HELP = Command(b"HELP\r\n", b"", _text)
PING = Command(b"PING\r\n", b"", _nothing)
