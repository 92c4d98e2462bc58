"""The requests of the protocol as values, and how the words of their command lines are parsed.

PUSH has a body and is parsed in `logd.protocol`, except for its options. An invalid word raises a
`LogdError` that describes the valid ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from logd.batch import ENCODINGS, LINES, MAX_NUMBER, NO_ID, Buffer
from logd.errors import BadRequest, BadTopic, LogdError

MAX_WAIT_MS = 60_000

TOPIC_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_TOPIC = re.compile(TOPIC_NAME.encode())
_GLOB = re.compile(rb"[A-Za-z0-9._*?\[\]!-]{1,128}")
_NUMBER = re.compile(rb"[0-9]{1,19}")
_SUM = re.compile(rb"[0-9a-f]{16}")
CURSOR_NAME = rb"[A-Za-z0-9._-]{1,64}"
_NAME = re.compile(CURSOR_NAME)
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}:[0-9]{1,19}")
_OPTION = re.compile(rb"([a-z]+)=(.*)", re.DOTALL)
_SIZE = re.compile(rb"([0-9]{1,19})\r?\n")
_MAX_PREFIX_BYTES = 140  # a verb and a topic

try:
    from logd._native import mixed_pushes as mixed_pushes
    from logd._native import one_push as one_push
    from logd._native import pushes as pushes
except ImportError:  # installed without a compiler

    def _message(data: bytes, at: int, end: int, prefix: bytes, most: int) -> bytes | None:
        """The message of the push at `at`, if it has this prefix and ends before `end`."""
        match = _SIZE.match(data, at + len(prefix)) if data.startswith(prefix, at) else None
        if match is None or not 0 < (size := int(match[1])) <= most:
            return None
        start, stop = match.end(), match.end() + size
        if stop > end or data.find(b"\n", start, stop) != stop - 1:
            return None
        return data[start:stop]

    def pushes(
        data: bytes, at: int, prefix: bytes, most: int, room: int, /
    ) -> tuple[list[Buffer], int]:
        """The messages of the pushes that start at `at`, and where these end; there may be none.

        Each has this `prefix`, up to the space before the size, no options, and one message of at
        most `most` bytes with its LF. All messages together have at most `room` bytes.
        """
        bodies: list[Buffer] = []
        while (body := _message(data, at, len(data), prefix, most)) is not None:
            room -= len(body)
            if room < 0:
                break
            bodies.append(body)
            at = data.index(b"\n", at) + 1 + len(body)
        return bodies, at

    def mixed_pushes(
        data: bytes, at: int, end: int, most: int, prefixes: list[bytes],
        bodies: list[list[Buffer]], turns: bytearray, /,
    ) -> int:  # fmt: skip
        """The same for pushes that have any of the `prefixes`: adds their messages to the list of
        their prefix in `bodies`, and the number of their prefix to `turns`."""
        runs = {prefix: run for run, prefix in enumerate(prefixes)}
        while True:
            prefix = data[at : data.find(b" ", at + 5, at + _MAX_PREFIX_BYTES) + 1]
            body = _message(data, at, end, prefix, most) if prefix in runs else None
            if body is None:
                return at
            bodies[runs[prefix]].append(body)
            turns.append(runs[prefix])
            at = data.index(b"\n", at) + 1 + len(body)

    def one_push(data: bytes, prefix: bytes, most: int, /) -> bytes | None:
        """The message, if `data` is one such push and nothing else."""
        bodies, end = pushes(data, 0, prefix, most, most)
        return bytes(bodies[0]) if len(bodies) == 1 and end == len(data) else None


class Pushes(NamedTuple):
    """Consecutive plain pushes to one topic: bodies of lines, each with its own reply.

    `counts` has the number of messages of each body; None: each has exactly one.
    """

    topic: str
    bodies: list[Buffer]
    counts: list[int] | None


class Mixed(NamedTuple):
    """Interleaved plain pushes of one message each to several topics."""

    runs: dict[str, list[Buffer]]  # the messages for each topic
    turns: bytes  # which run each push belongs to, in order

    def one_by_one(self) -> list[Pushes]:
        runs = [(topic, iter(bodies)) for topic, bodies in self.runs.items()]
        return [Pushes(runs[i][0], [next(runs[i][1])], None) for i in self.turns]


class Push(NamedTuple):
    """One push with options. Its body is checked before it is stored."""

    topic: str
    body: Buffer
    enc: str = LINES
    messages: int | None = None
    sum: str | None = None
    id: str = NO_ID


class At(NamedTuple):
    """A position in a topic given by time: the first batch that is not older."""

    time_ms: int


Where = int | str | At  # an offset, "first" or "next", a time


class Read(NamedTuple):
    topic: str
    where: Where
    messages: int
    max_bytes: int | None = None
    wait_ms: int = 0


class Tail(NamedTuple):
    topic: str
    messages: int


class Follow(NamedTuple):
    """Batches from `where` on, as they are stored, until the next command."""

    topic: str
    where: Where
    max_bytes: int | None = None  # of one reply


class Stats(NamedTuple):
    topic: str | None = None


class Topics(NamedTuple):
    """`sees`, which is not part of the command, hides topics that the client may not see."""

    glob: str = "*"
    sees: Callable[[str], bool] | None = None


class Partitions(NamedTuple):
    topic: str


class Cursor(NamedTuple):
    """The position of a cursor; without a name, of all cursors."""

    topic: str
    name: str | None = None


class Commit(NamedTuple):
    """Create a cursor or move it to an offset; None removes it."""

    topic: str
    name: str
    offset: int | None


class ConfigRequest(NamedTuple):
    pass


class Help(NamedTuple):
    pass


class Ping(NamedTuple):
    pass


class Close(NamedTuple):
    pass


class Auth(NamedTuple):
    """A token, which is dropped after it was checked.

    `previous` is the grant that the connection had before, set when the token is accepted.
    """

    token: bytes
    previous: Any = None

    def __repr__(self) -> str:
        return "Auth(...)"


class RefusedRequest(NamedTuple):
    """A request that is answered with an error, in the order of the requests."""

    error: LogdError


Request = (
    Pushes
    | Mixed
    | Push
    | Read
    | Tail
    | Follow
    | Stats
    | Topics
    | Partitions
    | Cursor
    | Commit
    | ConfigRequest
    | Help
    | Ping
    | Close
    | Auth
    | RefusedRequest
)


# -- words --------------------------------------------------------------------------------------


def topic_name(word: bytes) -> str:
    """The only definition of a valid topic name."""
    if not _TOPIC.fullmatch(word):
        raise BadTopic(
            "a topic is 1 to 128 of A-Z a-z 0-9 . _ - and starts with a letter or a digit"
        )
    return word.decode()


def topic_glob(word: bytes) -> str:
    """The only definition of a valid glob in a request."""
    if not _GLOB.fullmatch(word):
        raise BadRequest("a glob is 1 to 128 of A-Z a-z 0-9 . _ - and * ? [ ] !")
    return word.decode()


def cursor_name(word: bytes, of: str = "cursor") -> str:
    if not _NAME.fullmatch(word):
        raise BadRequest(f"a {of} name has 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return word.decode()


def number(word: bytes, what: str) -> int:
    if not _NUMBER.fullmatch(word) or (value := int(word)) > MAX_NUMBER:
        raise BadRequest(f"{what} must be a decimal number up to {MAX_NUMBER}")
    return value


def where(word: bytes) -> Where:
    if word in (b"first", b"next"):
        return word.decode()
    if word.startswith(b"@"):
        return At(number(word[1:], "the time after @"))
    return number(word, "where must be first, next, @<unix ms> or an offset, which")


def _message_count(word: bytes) -> int:
    count = number(word, "the number of messages")
    if count == 0:
        raise BadRequest("ask for at least 1 message")
    return count


def options(words: list[bytes], known: dict[bytes, Callable[[bytes], object]]) -> dict[str, Any]:
    """The `name=value` words, each parsed by its function in `known`."""
    found: dict[str, Any] = {}
    for word in words:
        match = _OPTION.fullmatch(word)
        if match is None or match[1] not in known:
            names = ", ".join(f"{name.decode()}=" for name in known) or "none"
            raise BadRequest(f"unknown option {quote(word)}; known here: {names}")
        name = match[1].decode()
        if name in found:
            raise BadRequest(f"option {name}= is given twice")
        found[name] = known[match[1]](match[2])
    return found


def _encoding(word: bytes) -> str:
    enc = word.decode("ascii", "replace")
    if enc not in ENCODINGS:
        raise BadRequest(f"enc= must be one of {', '.join(ENCODINGS)}")
    return enc


def _sum(word: bytes) -> str:
    if not _SUM.fullmatch(word):
        raise BadRequest("sum= must be 16 lower-case hex digits: the XXH3-64 of the body")
    return word.decode()


def producer_id(word: bytes) -> str:
    if not _ID.fullmatch(word):
        raise BadRequest("id= must be <producer>:<n>, the producer 1 to 64 of A-Z a-z 0-9 . _ -")
    producer, _, n = word.partition(b":")
    return f"{producer.decode()}:{number(n, 'the number in id=')}"


def quote(word: bytes) -> str:
    return ascii(word[:40].decode("latin-1"))


PUSH_OPTIONS: dict[bytes, Callable[[bytes], object]] = {
    b"enc": _encoding,
    b"count": lambda word: number(word, "count="),
    b"sum": _sum,
    b"id": producer_id,
}
READ_OPTIONS: dict[bytes, Callable[[bytes], object]] = {
    b"bytes": lambda word: number(word, "bytes="),
    b"wait": lambda word: min(number(word, "wait="), MAX_WAIT_MS),
}
FOLLOW_OPTIONS = {b"bytes": READ_OPTIONS[b"bytes"]}


# -- commands other than PUSH -------------------------------------------------------------------


def _read(words: list[bytes]) -> Request:
    if len(words) < 3:
        raise BadRequest("usage: READ <topic> <where> <messages> [bytes=<n>] [wait=<ms>]")
    given = options(words[3:], READ_OPTIONS)
    topic, start, messages = topic_name(words[0]), where(words[1]), _message_count(words[2])
    return Read(topic, start, messages, given.get("bytes"), given.get("wait", 0))


def _follow(words: list[bytes]) -> Request:
    if len(words) < 2:
        raise BadRequest("usage: FOLLOW <topic> <where> [bytes=<n>]")
    given = options(words[2:], FOLLOW_OPTIONS)
    return Follow(topic_name(words[0]), where(words[1]), given.get("bytes"))


def _commit(topic: bytes, name: bytes, word: bytes) -> Request:
    offset = None if word == b"-" else number(word, "the offset, unless it is -,")
    return Commit(topic_name(topic), cursor_name(name), offset)


def _auth(token: bytes) -> Request:
    if not token:
        raise BadRequest("usage: AUTH <token>")
    return Auth(token)


def _command(usage: str, make: Callable[..., Request]) -> Callable[[list[bytes]], Request]:
    """Passes the words of a command to `make`. `usage` shows how many there may be."""
    least, most = usage.count(" <"), usage.count("<")

    def parse(words: list[bytes]) -> Request:
        if not least <= len(words) <= most:
            raise BadRequest(f"usage: {usage}" if most else f"{usage} takes no arguments")
        return make(*words)

    return parse


COMMANDS: dict[bytes, Callable[[list[bytes]], Request]] = {
    b"READ": _read,
    b"FOLLOW": _follow,
    b"TAIL": _command(
        "TAIL <topic> <messages>", lambda topic, n: Tail(topic_name(topic), _message_count(n))
    ),
    b"STATS": _command("STATS [<topic>]", lambda *topic: Stats(*map(topic_name, topic))),
    b"TOPICS": _command("TOPICS [<glob>]", lambda glob=b"*": Topics(topic_glob(glob))),
    b"PARTITIONS": _command("PARTITIONS <topic>", lambda topic: Partitions(topic_name(topic))),
    b"CURSOR": _command(
        "CURSOR <topic> [<name>]",
        lambda topic, *name: Cursor(topic_name(topic), *map(cursor_name, name)),
    ),
    b"COMMIT": _command("COMMIT <topic> <name> <offset>, or - to remove it", _commit),
    b"CONFIG": _command("CONFIG", ConfigRequest),
    b"HELP": _command("HELP", Help),
    b"PING": _command("PING", Ping),
    b"CLOSE": _command("CLOSE", Close),
    b"AUTH": _command("AUTH <token>", _auth),
}

HELP_TEXT = b"""\
PUSH <topic> <bytes> [enc=] [count=] [sum=] [id=]   then <bytes> of body -> OK <offset> <messages>
PUSH <topic>                                        then one line        -> OK <offset> 1
READ <topic> <where> <messages> [bytes=] [wait=]    -> BATCHES <offset> <messages> <bytes>
TAIL <topic> <messages>                             the newest, as READ
FOLLOW <topic> <where> [bytes=]                     BATCHES as they are stored -> END <offset>
STATS [<topic>]                                     counters, as name: value
TOPICS [<glob>]                                     <topic> <first> <next> <bytes> <partitions>
PARTITIONS <topic>                                  <first> <next> <bytes> <min-time> <max-time>
COMMIT <topic> <name> <offset>                      moves a cursor       -> OK <offset> <lag>
COMMIT <topic> <name> -                             removes it           -> OK
CURSOR <topic> <name>                               where it stands      -> OK <offset> <lag>
CURSOR <topic>                                      <name> <offset> <lag> <time>
CONFIG                                              the settings in force
AUTH <token>                                        who you are          -> OK
PING                                                -> OK
CLOSE                                               -> OK, and the connection ends
HELP                                                this text
<where> is an offset, first, next, or @<unix ms>. enc= is lines, sized, lines+zstd or sized+zstd.
"""


# -- command lines of clients -------------------------------------------------------------------


def push_line(push: Push) -> bytes:
    """The command line of a push; its body follows."""
    line = f"PUSH {push.topic} {len(push.body)}"
    if push.enc != LINES:
        line += f" enc={push.enc}"
    if push.messages is not None:
        line += f" count={push.messages}"
    if push.sum is not None:
        line += f" sum={push.sum}"
    if push.id != NO_ID:
        line += f" id={push.id}"
    return f"{line}\r\n".encode()


def follow_line(follow: Follow) -> bytes:
    limit = "" if follow.max_bytes is None else f" bytes={follow.max_bytes}"
    return f"FOLLOW {follow.topic} {_where_word(follow.where)}{limit}\r\n".encode()


def _where_word(where: Where) -> str:
    return f"@{where.time_ms}" if isinstance(where, At) else str(where)


def read_line(read: Read) -> bytes:
    line = f"READ {read.topic} {_where_word(read.where)} {read.messages}"
    if read.max_bytes is not None:
        line += f" bytes={read.max_bytes}"
    if read.wait_ms:
        line += f" wait={read.wait_ms}"
    return f"{line}\r\n".encode()
