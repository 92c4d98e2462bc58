"""What docs/protocol.md says that a daemon answers, for any bytes at all.

Written from that page and sharing no parser with the daemon. `Conversation.send` takes what a
client sends and gives the replies that are now due, in order; `Model` is what is stored meanwhile.
One conversation at a time is held with a model, so offsets are known exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import zstandard
from xxhash import xxh3_64_hexdigest

from logd.errors import LogdError
from tests.support.daemon import Reply, batches

MAX_BATCH_BYTES = 65536
MAX_TOPICS = 40
MAX_CURSORS = 20
LINE, ONE_LINE, LARGEST = 1024, 65536, 2**63 - 1
PATIENCE_MS = 20  # a READ that waits longer is not waited for

_TOPIC = rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = rb"[A-Za-z0-9._-]{1,64}"
_HTTP = re.compile(rb"[A-Za-z]+ \S+ HTTP/[0-9.]+|[A-Za-z-]+: ")
_ENCODINGS = (b"lines", b"sized", b"lines+zstd", b"sized+zstd")
_BARE = (b"PING", b"HELP", b"CONFIG", b"CLOSE")

Check = Callable[[Reply], bool]


class Due(NamedTuple):
    """A reply that must come: one of these beginnings, and what else is true of it."""

    heads: tuple[bytes, ...]
    check: Check = lambda reply: True

    def fits(self, reply: Reply) -> bool:
        begins = any(reply.head == h or reply.head.startswith(h + b" ") for h in self.heads)
        return begins and self.check(reply)


def refused(*codes: str) -> Due:
    return Due(tuple(f"ERR {code}".encode() for code in codes))


def exactly(head: bytes) -> Due:
    return Due((head,), lambda reply: reply.head == head)


class Stream:
    """The replies to a FOLLOW: batches without a gap, and a last line if a command follows."""

    heads = (b"BATCHES", b"END", b"ERR out-of-range")

    def __init__(
        self, topic: Topic, start: int | None, max_bytes: int, *, is_at_time: bool
    ) -> None:
        self._topic, self._next, self._max_bytes = topic, topic.next, max_bytes
        self._at = start  # None: only the daemon knows where it starts
        self._is_at_time = is_at_time
        self.must_end = False  # another command was sent
        self.has_ended = False

    @property
    def is_at_end(self) -> bool:
        """Has everything been sent that is stored?"""
        return self._at == self._next or (self._at is None and self._is_at_time)

    def fits(self, reply: Reply) -> bool:
        words = reply.head.split(b" ")
        if words[0] == b"BATCHES":
            return self._fits_batches(int(words[1]), int(words[2]), reply.body)
        self.has_ended = True
        if words[0] == b"ERR":  # retention was quicker
            found = re.match(rb"ERR out-of-range first=(\d+) next=(\d+)", reply.head)
            return found is not None and (self._at is None or self._at < int(found[1]))
        end = int(words[1])
        is_right = self._at in (None, end) and end <= self._next
        return words[0] == b"END" and self.must_end and is_right

    def _fits_batches(self, offset: int, messages: int, body: bytes) -> bool:
        if self._at not in (None, offset) or offset + messages > self._next:
            return False
        self._at = offset + messages
        if not messages:  # a heartbeat
            return not body and offset == self._next
        is_small = len(body) <= max(1, self._max_bytes) or len(batches(body)) == 1
        return is_small and _is_stored(self._topic, body, offset, offset + messages)


class Wrong(Exception):
    """A command is refused with one of these codes."""

    def __init__(self, *codes: str) -> None:
        self.codes = codes


@dataclass
class Topic:
    messages: dict[int, bytes] = field(default_factory=dict)  # those that were acknowledged
    oldest: int = 0  # of these
    next: int = 0
    first: int = 0  # the highest that was told
    producers: dict[bytes, dict[int, tuple[int, int, str]]] = field(default_factory=dict)
    cursors: dict[bytes, int] = field(default_factory=dict)

    def add(self, messages: list[bytes]) -> tuple[int, int]:
        offset = self.next
        self.messages.update(enumerate(messages, offset))
        self.next += len(messages)
        while self.oldest < self.next - 60_000:
            self.messages.pop(self.oldest, None)  # retention has taken it long ago
            self.oldest += 1
        return offset, len(messages)

    def lag(self, offset: int) -> bytes:
        return b"OK %d %d" % (offset, max(0, self.next - offset))


class Model:
    def __init__(self) -> None:
        self.topics: dict[bytes, Topic] = {}

    def push(self, name: bytes, messages: list[bytes], id_: bytes = b"", sum_: str = "") -> Due:
        topic = self.topics.get(name)
        if topic is None:
            if len(self.topics) >= MAX_TOPICS:
                return refused("topic-limit")
            topic = self.topics[name] = Topic()
        if not id_:
            return exactly(b"OK %d %d" % topic.add(messages))
        producer, _, word = id_.rpartition(b":")
        known, n = topic.producers.setdefault(producer, {}), int(word)
        last = max(known, default=n - 1)
        if n in known and last - n < 1024:
            offset, count, same = known[n]
            is_same = same == sum_
            return exactly(b"OK %d %d" % (offset, count)) if is_same else refused("conflict")
        if n != last + 1:
            return Due((b"ERR out-of-order last=%d" % last,))
        known[n] = (*topic.add(messages), sum_)
        known.pop(n - 1024, None)
        return exactly(b"OK %d %d" % known[n][:2])

    def topic(self, name: bytes) -> Topic:
        if name not in self.topics:
            raise Wrong("not-found")
        return self.topics[name]


class Conversation:
    """One connection. `closed`: the daemon ends it; `stuck`: it may not answer for a while."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.closed = self.stuck = False
        self.stream: Stream | None = None  # of a FOLLOW that nothing has ended yet
        self._rest = b""
        self._step: Callable[[], Due | Stream | bool | None] = self._line
        self._drop = 0
        self._push: tuple[bytes, int, dict[bytes, bytes]] = (b"", 0, {})
        self._commands: dict[bytes, Callable[[list[bytes]], Due | Stream]] = {
            b"FOLLOW": self._follow, b"READ": self._read, b"TAIL": self._tail,
            b"CURSOR": self._cursor, b"COMMIT": self._commit, b"STATS": self._stats,
            b"TOPICS": self._topics, b"PARTITIONS": self._partitions,
        }  # fmt: skip

    @property
    def unfinished(self) -> bool:
        return bool(self._rest) or self._step != self._line

    @property
    def unread_bytes(self) -> int:
        """At the end of what was sent, so many bytes have no meaning yet."""
        return len(self._rest)

    def send(self, data: bytes) -> list[Due | Stream]:
        """The replies that these bytes bring. A step gives one, or False to wait for more."""
        self._rest += data
        due: list[Due | Stream] = []
        while not (self.closed or self.stuck):
            reply = self._step()
            if reply is False:
                break
            if isinstance(reply, Due | Stream):
                if self.stream is not None:
                    self.stream.must_end = True
                self.stream = reply if isinstance(reply, Stream) else None
                due.append(reply)
        return due

    def _close(self, *codes: str) -> Due:
        self.closed, self._rest = True, b""
        return refused(*codes)

    def _take(self, size: int) -> bytes:
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    # -- framing --------------------------------------------------------------------------------

    def _line(self) -> Due | Stream | bool | None:
        end = self._rest.find(b"\n", 0, LINE + 2)
        if end < 0:
            return self._close("too-large") if len(self._rest) >= LINE + 2 else False
        line = self._take(end + 1)[:-1].removesuffix(b"\r")
        if len(line) > LINE:
            return self._close("too-large")
        words = line.split(b" ")
        verb = words.pop(0).upper()
        try:
            if verb == b"PUSH":
                return self._pushed(words)
            if verb == b"AUTH":  # this daemon asks for no token, so any will do
                return exactly(b"OK") if len(words) == 1 and words[0] else refused("bad-request")
            if _HTTP.match(line) or verb not in (*self._commands, *_BARE):
                return self._close("unknown-command")
            if verb in self._commands:
                return self._commands[verb](words)
        except Wrong as wrong:
            return refused(*wrong.codes)
        if words:
            return refused("bad-request")
        self.closed = verb == b"CLOSE"
        return Due((b"TEXT",)) if verb in (b"HELP", b"CONFIG") else exactly(b"OK")

    def _pushed(self, words: list[bytes]) -> Due | None:
        is_topic = bool(words) and re.fullmatch(_TOPIC, words[0]) is not None
        if len(words) == 1:
            self._push = (words[0], 0, {})
            self._step = self._one_line if is_topic else self._dropped_line
            return None if is_topic else refused("bad-topic")
        if len(words) < 2 or not _is_number(words[1]):
            return self._close("bad-request")
        size = int(words[1])
        if size > MAX_BATCH_BYTES:
            return self._close("too-large")
        options, is_right = _options(words[2:], _PUSH_OPTIONS)
        if size and is_topic and is_right:
            self._push, self._step = (words[0], size, options), self._body
            return None
        self._drop, self._step = size, self._dropped
        wrong = ["bad-request"] if not (size and is_right) else []
        return refused(*wrong, *(["bad-topic"] if not is_topic else []))

    def _dropped(self) -> Due | bool | None:
        self._drop -= len(self._take(self._drop))
        if self._drop:
            return False
        self._step = self._line
        return None

    def _dropped_line(self) -> Due | bool | None:
        return self._one_line(is_dropped=True)

    def _one_line(self, *, is_dropped: bool = False) -> Due | bool | None:
        end = self._rest.find(b"\n")
        if end > ONE_LINE + 1 or (end < 0 and len(self._rest) > ONE_LINE + 2):
            return self._close("too-large")
        if end < 0:
            return False
        message = self._take(end + 1)[:-1].removesuffix(b"\r")
        self._step = self._line
        if is_dropped:
            return None
        if len(message) > ONE_LINE:
            return self._close("too-large")
        return self.model.push(self._push[0], [message])

    def _body(self) -> Due | bool | None:
        name, size, options = self._push
        if len(self._rest) < size:
            return False
        body, self._step = self._take(size), self._line
        try:
            messages = split(body, options.get(b"enc", b"lines"))
        except Wrong as wrong:
            messages, codes = [], list(wrong.codes)
        else:
            count = int(options.get(b"count", b"%d" % len(messages)))
            codes = [] if count == len(messages) else ["bad-request"]
        sum_ = xxh3_64_hexdigest(body)
        if options.get(b"sum", sum_.encode()) != sum_.encode():
            codes = ["checksum"]  # a body that was damaged on its way is not looked into
        if codes == ["too-large"]:
            return self._close("too-large")
        if codes:
            return refused(*codes)
        return self.model.push(name, messages, options.get(b"id", b""), sum_)

    # -- the other commands ---------------------------------------------------------------------

    def _named(self, words: list[bytes], least: int, most: int, **right: bool) -> Topic:
        """The topic that the first word names, if that and all the rest is right."""
        wrong = [] if least <= len(words) <= most and all(right.values()) else ["bad-request"]
        if words and not re.fullmatch(_TOPIC, words[0]):
            wrong.append("bad-topic")
        if wrong:
            raise Wrong(*wrong)
        return self.model.topic(words[0])

    def _follow(self, words: list[bytes]) -> Due | Stream:
        options, is_right = _options(words[2:], _FOLLOW_OPTIONS)
        topic = self._named(words, 2, 99, options=is_right, place=_is_place(words[1:2]))
        where = words[1]
        start = int(where) if _is_number(where) else topic.next if where == b"next" else None
        if start is not None and start > topic.next:
            return Due((b"ERR out-of-range",), _names_range(topic))
        limit = int(options.get(b"bytes", b"1048576"))
        return Stream(topic, start, limit, is_at_time=where.startswith(b"@"))

    def _read(self, words: list[bytes]) -> Due:
        options, is_right = _options(words[3:], _READ_OPTIONS)
        where = words[1] if len(words) > 1 else b""
        is_place = _is_place(words[1:2])
        is_count = len(words) > 2 and _is_number(words[2]) and int(words[2]) > 0
        topic = self._named(words, 3, 99, options=is_right, place=is_place, count=is_count)
        start = int(where) if _is_number(where) else topic.next if where == b"next" else None
        wait_ms = int(options.get(b"wait", b"0"))
        if start is not None and start > topic.next:
            return Due((b"ERR out-of-range",), _names_range(topic))
        may_wait = start == topic.next or where.startswith(b"@")
        self.stuck = wait_ms > PATIENCE_MS and may_wait
        return _batches(topic, start, int(words[2]))

    def _tail(self, words: list[bytes]) -> Due:
        is_count = len(words) > 1 and _is_number(words[1]) and int(words[1]) > 0
        topic = self._named(words, 2, 2, count=is_count)
        start = max(0, topic.next - int(words[1]))
        return _batches(topic, start, int(words[1]), or_first=True)

    def _cursor(self, words: list[bytes]) -> Due:
        is_name = len(words) < 2 or re.fullmatch(_NAME, words[1]) is not None
        topic = self._named(words, 1, 2, name=is_name)
        if len(words) == 1:
            rows = [b"%s %s" % (n, topic.lag(o)[3:]) for n, o in sorted(topic.cursors.items())]
            return Due((b"TEXT",), lambda reply: _first_words(reply.body, 3) == rows)
        if words[1] not in topic.cursors:
            return refused("not-found")
        return exactly(topic.lag(topic.cursors[words[1]]))

    def _commit(self, words: list[bytes]) -> Due:
        is_name = len(words) > 1 and re.fullmatch(_NAME, words[1]) is not None
        is_place = len(words) > 2 and (words[2] == b"-" or _is_number(words[2]))
        topic = self._named(words, 3, 3, name=is_name, place=is_place)
        name, cursors = words[1], topic.cursors
        if words[2] == b"-":
            return exactly(b"OK") if cursors.pop(name, None) is not None else refused("not-found")
        offset = int(words[2])
        if offset > topic.next:
            return Due((b"ERR out-of-range",), _names_range(topic))
        if name not in cursors and len(cursors) >= MAX_CURSORS:
            return refused("topic-limit")
        cursors[name] = offset
        return exactly(topic.lag(offset))

    def _stats(self, words: list[bytes]) -> Due:
        if not words:
            return Due((b"TEXT",))
        line = b"\nnext: %d\n" % self._named(words, 1, 1).next
        return Due((b"TEXT",), lambda reply: line in reply.body)

    def _partitions(self, words: list[bytes]) -> Due:
        next_ = self._named(words, 1, 1).next
        return Due(
            (b"TEXT",), lambda reply: reply.body.splitlines()[-1].split()[1] == b"%d" % next_
        )

    def _topics(self, words: list[bytes]) -> Due:
        if words and (
            len(words) > 1 or not re.fullmatch(rb"[A-Za-z0-9._*?\[\]!-]{1,128}", words[0])
        ):
            return refused("bad-request")
        if words and words != [b"*"]:
            return Due((b"TEXT",))
        rows = {(name, b"%d" % topic.next) for name, topic in self.model.topics.items()}

        def check(reply: Reply) -> bool:
            lines = (line.split(b" ") for line in reply.body.splitlines())
            return {(line[0], line[2]) for line in lines} == rows

        return Due((b"TEXT",), check)


# -- words and bodies ---------------------------------------------------------------------------


def _is_number(word: bytes) -> bool:
    return re.fullmatch(rb"[0-9]{1,19}", word) is not None and int(word) <= LARGEST


def _is_place(words: list[bytes]) -> bool:
    return words in ([b"first"], [b"next"]) or (
        bool(words) and _is_number(words[0].removeprefix(b"@"))
    )


def _is_id(word: bytes) -> bool:
    name, colon, n = word.rpartition(b":")
    return bool(colon) and re.fullmatch(_NAME, name) is not None and _is_number(n)


_PUSH_OPTIONS: dict[bytes, Callable[[bytes], bool]] = {
    b"enc": lambda word: word in _ENCODINGS,
    b"count": _is_number,
    b"sum": lambda word: re.fullmatch(rb"[0-9a-f]{16}", word) is not None,
    b"id": _is_id,
}
_READ_OPTIONS: dict[bytes, Callable[[bytes], bool]] = {b"bytes": _is_number, b"wait": _is_number}
_FOLLOW_OPTIONS: dict[bytes, Callable[[bytes], bool]] = {b"bytes": _is_number}


def _options(
    words: list[bytes], known: dict[bytes, Callable[[bytes], bool]]
) -> tuple[dict[bytes, bytes], bool]:
    found: dict[bytes, bytes] = {}
    for word in words:
        name, equals, value = word.partition(b"=")
        if not equals or name not in known or name in found or not known[name](value):
            return {}, False
        found[name] = value
    return found, True


def split(body: bytes, enc: bytes) -> list[bytes]:
    """The messages of a body, or what is wrong with it."""
    if enc.endswith(b"+zstd"):
        body = _inflated(body)
    if enc.startswith(b"lines"):
        if not body.endswith(b"\n"):
            raise Wrong("bad-request")
        return body[:-1].split(b"\n")
    sizes, lf, rest = body.partition(b"\n")
    words = sizes.split(b" ")
    if not lf or not all(re.fullmatch(rb"0|[1-9][0-9]{0,9}", word) for word in words):
        raise Wrong("bad-request")
    messages, at = [], 0
    for size in map(int, words):
        messages.append(rest[at : at + size])
        at += size
    if at != len(rest):
        raise Wrong("bad-request")
    return messages


def _inflated(body: bytes) -> bytes:
    if body[:4] != b"\x28\xb5\x2f\xfd":  # a frame to skip is none
        raise Wrong("bad-request")
    try:
        frame = zstandard.get_frame_parameters(body)
        if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN or frame.dict_id:
            raise Wrong("bad-request")
        if frame.content_size > MAX_BATCH_BYTES:
            raise Wrong("too-large")
        inflating = zstandard.ZstdDecompressor().decompressobj()
        content = inflating.decompress(body)
    except zstandard.ZstdError:
        raise Wrong("bad-request") from None
    if not inflating.eof or inflating.unused_data:
        raise Wrong("bad-request")
    return content


# -- replies with something in them -------------------------------------------------------------


def _first_words(text: bytes, count: int) -> list[bytes]:
    return [b" ".join(line.split(b" ")[:count]) for line in text.splitlines()]


def _names_range(topic: Topic) -> Check:
    next_ = topic.next

    def check(reply: Reply) -> bool:
        found = re.match(rb"ERR out-of-range first=(\d+) next=(\d+)", reply.head)
        return found is not None and int(found[1]) <= int(found[2]) == next_

    return check


def _batches(topic: Topic, start: int | None, count: int, *, or_first: bool = False) -> Due:
    """Whole batches from there on, of what was acknowledged, unless retention was quicker."""
    next_ = topic.next

    def check(reply: Reply) -> bool:
        if reply.head.startswith(b"ERR"):
            found = re.match(rb"ERR out-of-range first=(\d+) next=(\d+)", reply.head)
            is_gone = found is not None and start is not None and start < int(found[1])
            return is_gone and not or_first
        offset, messages = map(int, reply.head.split(b" ")[1:3])
        if start is not None and offset != start and not (or_first and offset > start):
            return False
        if offset == next_ or not messages:
            return offset == next_ and not messages and not reply.body
        return (
            _is_stored(topic, reply.body, offset, offset + messages) and offset + messages <= next_
        )

    return Due((b"BATCHES", b"ERR out-of-range"), check)


def _is_stored(topic: Topic, data: bytes, at: int, end: int) -> bool:
    try:
        found = batches(data)
    except LogdError:
        return False
    for batch in found:
        header = batch.header
        if not header.offset <= at < header.next or len(batch.messages) != header.messages:
            return False
        for offset, message in enumerate(batch.messages, header.offset):
            if topic.messages.get(offset, message) != message:
                return False
        at = header.next
    return at == end
