"""Requests that are small to send and large to process, for every route and encoding.

A body is one short token repeated, alone or within the frame that a route expects, up to the
largest body that the daemon accepts. `stored` fills topics with such batches; reads of them are
the other half: each form, with searches, limits and clients that stop reading.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple
from urllib.parse import urlencode

import zstandard

BODY_BYTES = 8 << 20  # the default of max-batch-bytes
TOKENS = (
    b"\n", b"\0", b"a", b"a\n", b"0 ", b"1 ", b"\r\n", b" ", b'"",', b"[", b"{", b'{"a":', b"[],",
    b"{}\n", b"{},",
    b'""\n', b"null,", b"=&", b"%00", b"\\u0000", b"<1>\n", b"\xff", b"1,", b"A=b\n", b"A=b\n\n",
)  # fmt: skip
GETS = ("/topics", "/stats", "/metrics", "/openapi.json", "/", "/healthz", "/topics/search")
READS = ("text", "ndjson", "raw")
# Commands that are short to send. Repeated, they are hundreds of thousands in one body.
COMMANDS = (
    b"PING\r\n", b"STATS\r\n", b"STATS search\r\n", b"TOPICS\r\n", b"TOPICS *a*b*c*\r\n",
    b"CONFIG\r\n", b"HELP\r\n", b"PARTITIONS search\r\n", b"CURSOR search\r\n",
    b"COMMIT search c 0\r\n", b"READ search 0 1\r\n", b"READ search next 1\r\n",
    b"FOLLOW search 0\r\n", b"FOLLOW search next\r\n", b"FOLLOW search next\r\nPING\r\n",
    b"FOLLOW search 0 bytes=1\r\n", b"FOLLOW empty @0\r\n", b"FOLLOW nothing 0\r\n",
    b"FOLLOW search next\r\nPUSH search\r\n\r\n", b"READ nothing 0 1\r\n",
    b"TAIL empty 1\r\n", b"PUSH bombs\r\n\r\n", b"PUSH bombs 1\r\n\n",
    b"PUSH a 1\r\n\nPUSH b 1\r\n\n", b"PUSH ! 1\r\n\n", b"PUSH a 1\r\nx",
    b"PUSH a 1 enc=sized\r\n0", b"PUSH a 2 id=p:1\r\nx\n", b"X\r\n", b"\r\n",
)  # fmt: skip
# Patterns that are expensive for an automaton, and some that match everything or nothing.
PATTERNS = (
    "q", "", ".", "a.{900}c", "(a|b)*c", ".*a.*b.*c.*d", "(?i)[a-z]{100}x", "(.?){400}q", "[^x]*y",
    "(x+x+)+y", ".{0,500}z", "\\d{300}", "a|b|c|q", "$",
)  # fmt: skip


class HostileRequest(NamedTuple):
    """`request` goes to the listener `listener`; `reads` says what the client does with the reply:
    read all of it, stop reading, or leave after the first bytes."""

    name: str
    listener: str
    request: bytes
    reads: str = "all"


# -- bodies -------------------------------------------------------------------------------------


def repeated(token: bytes, size: int = BODY_BYTES) -> bytes:
    return token * (size // len(token))


def sized(token: bytes, size: int = BODY_BYTES) -> bytes:
    """A body in the encoding `sized`, all of whose messages are empty or one byte long."""
    count = size // (2 + int(token != b"0 "))
    digit = token[:1]
    messages = b"" if digit == b"0" else b"x" * count
    return b" ".join([digit] * count) + b"\n" + messages


def zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(body)


def zstd_unsized(body: bytes) -> bytes:
    """A frame that does not declare its content size."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(level=1).stream_writer(out, closefd=False) as writer:
        writer.write(body)
    return out.getvalue()


def push(topic: str, body: bytes, enc: str = "lines") -> bytes:
    return b"PUSH %s %d enc=%s\r\n%s" % (topic.encode(), len(body), enc.encode(), body)


def _pushes(topic: str) -> dict[str, Callable[[bytes], bytes]]:
    """A push of a repeated token, in each encoding."""
    return {
        "lines": lambda token: push(topic, repeated(token)[:-1] + b"\n"),
        "sized": lambda token: push(topic, sized(token), "sized"),
        "lines+zstd": lambda token: push(topic, zstd(repeated(token)[:-1] + b"\n"), "lines+zstd"),
        "sized+zstd": lambda token: push(topic, zstd(sized(token)), "sized+zstd"),
        "zstd twice": lambda token: push(topic, zstd(zstd(repeated(token))), "lines+zstd"),
        "zstd too large": lambda token: push(topic, zstd(bytes(1 << 28)), "lines+zstd"),
        "zstd unsized": lambda token: push(topic, zstd_unsized(repeated(token)), "lines+zstd"),
    }


# -- HTTP ---------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """Where a body goes, and what stands before and after the repeated token."""

    path: str
    kind: str
    before: bytes = b""
    token: bytes = b""  # empty: any
    after: bytes = b""


_HEADERS = ("Host: localhost", "Connection: close")  # the end of the connection ends the reply
_LOKI, _JSON, _NDJSON = "/loki/api/v1/push", "application/json", "application/x-ndjson"
_STREAMS, _NO_STREAM = b'{"streams":[', b'{"stream":{},"values":[]}'
_VALUES = b'{"streams":[{"stream":{"app":"x"},"values":['
FRAMES = (
    Frame("/topics/bombs", "text/plain"),
    Frame("/topics/bombs", _JSON),
    Frame("/topics/bombs", _JSON, b"[", b'"",', b'""]'),
    Frame("/topics/bombs", _JSON, b"[", b"{},", b"{}]"),
    Frame("/topics/bombs", _JSON, b"[", b'"\\u0000",', b'""]'),
    Frame("/topics/bombs", _JSON, b"", b"[", b""),
    Frame("/topics/bombs", _JSON, b'{"a":"', b"\\n", b'"}'),
    Frame("/topics/bombs", _NDJSON),
    Frame("/topics/bombs", _NDJSON, b"", b"{}\n"),
    Frame("/topics/bombs", _NDJSON, b"", b"1\n"),
    Frame("/topics/bombs", "application/x-www-form-urlencoded"),
    Frame("/topics/bombs", "application/octet-stream"),
    Frame(_LOKI, _JSON),
    Frame(_LOKI, _JSON, _VALUES, b'["1",""],', b'["1",""]]}]}'),
    Frame(_LOKI, _JSON, _VALUES, b"[],", b"[]]}]}"),
    Frame(_LOKI, _JSON, _VALUES + b'["1","",{', b'"a":"",', b'"b":""}]]}]}'),
    Frame(_LOKI, _JSON, _STREAMS, _NO_STREAM + b",", _NO_STREAM + b"]}"),
    Frame(_LOKI, _JSON, _STREAMS, b'{"stream":{},"values":[["1",""]]},', _NO_STREAM + b"]}"),
    Frame(_LOKI, _JSON, _STREAMS + b'{"stream":{', b'"a":"",', b'"b":""},"values":[["1",""]]}]}'),
    Frame(_LOKI, "application/x-protobuf"),
    Frame("/_bulk", _NDJSON),
    Frame("/_bulk", _NDJSON, b"", b'{"index":{"_index":"x"}}\n{}\n'),
    Frame("/x/_bulk", _NDJSON, b"", b'{"index":{}}\n{}\n'),
    Frame("/x/_bulk", _NDJSON, b"", b'{"delete":{}}\n'),
    Frame("/x/_bulk", _JSON, b'{"index":{}}\n{', b'"a":0,', b'"b":0}\n'),
    Frame("/x/_doc", _JSON, b"{", b'"a":0,', b'"b":0}'),
    Frame("/upload", "application/vnd.fdo.journal"),
    Frame("/upload", "application/vnd.fdo.journal", b"", b"A=b\n\n"),
    Frame("/upload", "application/vnd.fdo.journal", b"", b"A=b\n", b"\n"),
    Frame("/log", "application/octet-stream"),
    Frame("/log", "application/octet-stream", b"", b"PING\r\n"),
    Frame("/log", "application/octet-stream", b"", b"PUSH bombs\r\n\r\n"),
    Frame("/log", "application/octet-stream", b"", b"PUSH bombs 1\r\n\n"),
    Frame("/nothing", "text/plain"),
)  # fmt: skip


def http_post(
    path: str, kind: str, body: bytes, encoding: str = "identity", *, chunked: bool = False
) -> bytes:
    head = [f"POST {path} HTTP/1.1", *_HEADERS, f"Content-Type: {kind}"]
    if encoding == "gzip members":
        body = gzip.compress(b"", 1) * 50_000
    elif encoding != "identity":
        body = gzip.compress(body, 6)
    if encoding == "gzip twice":
        body = gzip.compress(body, 6)
    if encoding == "transfer gzip":
        head.append("Transfer-Encoding: gzip, chunked")
    else:
        head.append(f"Content-Encoding: {'identity' if encoding == 'identity' else 'gzip'}")
        head.append("Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}")
    if chunked or encoding == "transfer gzip":
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return "\r\n".join([*head, "", ""]).encode() + body


def http_get(path: str, **query: object) -> bytes:
    target = f"{path}?{urlencode(query)}" if query else path
    return "\r\n".join([f"GET {target} HTTP/1.1", *_HEADERS, "", ""]).encode()


ENCODINGS = ("identity", "gzip", "gzip twice", "gzip members", "transfer gzip")


# -- what is stored, to be read -----------------------------------------------------------------


def stored() -> dict[str, list[bytes]]:
    """Topics, and the pushes that fill them. All are accepted by the daemon."""
    empty = push("empty", zstd(repeated(b"\n")), "lines+zstd")
    lines = (b"ab" * 500 + b"\n") * 500
    return {
        "empty": [empty],
        "empties": [empty.replace(b" empty ", b" empties ", 1)] * 80,
        "sizes": [push("sizes", zstd(sized(b"0 ")), "sized+zstd")] * 10,
        "plain": [push("plain", repeated(b"\n"))],
        "plain-sizes": [push("plain-sizes", sized(b"1 "), "sized")],
        "line": [push("line", b"a" * (BODY_BYTES - 1) + b"\n")],
        "zstd-line": [push("zstd-line", zstd(b"a" * (BODY_BYTES - 1) + b"\n"), "lines+zstd")] * 20,
        "search": [push("search", lines)] * 8,
        "control": [push("control", zstd(b"\x01" * (BODY_BYTES - 1) + b"\n"), "lines+zstd")] * 5,
    }


TOPICS = tuple(stored())


# -- one at random ------------------------------------------------------------------------------


class HostileRequests:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._pushes = _pushes("bombs")

    def each(self) -> list[Callable[[], HostileRequest]]:
        """One of each kind: every frame plain and as gzip, every encoding, every form of read.

        They are made when they are called for: all of them together take a gigabyte."""
        both, random = ("tcp", "http"), self._random
        makers: list[Callable[[], HostileRequest]] = []
        for frame in FRAMES:
            makers += [partial(self.posted, frame, encoding) for encoding in ("identity", "gzip")]
        makers += [partial(self.posted, FRAMES[0], encoding) for encoding in ENCODINGS]
        makers += [partial(self.pushed, enc, listener) for enc in self._pushes for listener in both]
        for topic in TOPICS:
            makers += [partial(self.read, topic, form) for form in READS]
            makers.append(
                partial(self.read, topic, "ndjson", grep=random.choice(PATTERNS), limit=1)
            )
            makers += [partial(self.follow, topic), partial(self.by_protocol, topic)]
        makers += [partial(self.read, "search", "text", grep=pattern) for pattern in PATTERNS]
        makers += [partial(self.commanded, one, listener) for one in COMMANDS for listener in both]
        return [*makers, *[self.asked] * 5, *[self.pipelined] * 5]

    def any(self) -> HostileRequest:
        random = self._random
        match random.randrange(8):
            case 6:
                listener = random.choice(("tcp", "http"))
                return self.commanded(random.choice(COMMANDS), listener)
            case 7:
                return self.pipelined()
            case 0 | 1:
                return self.posted(random.choice(FRAMES), random.choice(ENCODINGS))
            case 2:
                return self.pushed(
                    random.choice(tuple(self._pushes)), random.choice(("tcp", "http"))
                )
            case 3:
                return self.follow(random.choice(TOPICS))
            case 4:
                return random.choice(
                    (self.asked, lambda: self.by_protocol(random.choice(TOPICS)))
                )()
        query: dict[str, object] = {}
        if random.random() < 0.5:
            query["grep"] = random.choice(PATTERNS)
        if random.random() < 0.5:
            query["limit"] = random.choice((0, 1, 10**6, 10**12))
        if random.random() < 0.5:
            query["from"] = random.choice((0, 1, BODY_BYTES // 2, BODY_BYTES - 1))
        return self.read(random.choice(TOPICS), random.choice(READS), **query)

    def _token(self) -> bytes:
        random = self._random
        if random.random() < 0.7:
            return random.choice(TOKENS)
        return bytes(random.choices(b'[]{}",: 01\n\\ua\r<>=\0', k=random.randrange(1, 9)))

    def _reads(self) -> str:
        return self._random.choice(("all", "all", "stop", "leave"))

    def posted(self, frame: Frame, encoding: str) -> HostileRequest:
        token = frame.token or self._token()
        room = BODY_BYTES - len(frame.before) - len(frame.after)
        body = frame.before + repeated(token, room) + frame.after
        chunked = self._random.random() < 0.5
        request = http_post(frame.path, frame.kind, body, encoding, chunked=chunked)
        return HostileRequest(
            f"{frame.path} {frame.kind} {encoding} {frame.before!r} {token!r}", "http", request
        )

    def pushed(self, enc: str, listener: str) -> HostileRequest:
        token = self._token()
        request = self._pushes[enc](token)
        if listener == "http":
            request = http_post("/log", "application/octet-stream", request)
        else:
            request += b"CLOSE\r\n"
        return HostileRequest(f"PUSH {enc} {token!r} over {listener}", listener, request)

    def commanded(self, command: bytes, listener: str) -> HostileRequest:
        request, reads = repeated(command), self._reads()
        if listener == "http":
            request = http_post("/log", "application/octet-stream", request)
        return HostileRequest(
            f"{command!r} over {listener} reads={reads}", listener, request, reads
        )

    def pipelined(self) -> HostileRequest:
        """Many requests in one piece, on one HTTP connection."""
        request = http_get(self._random.choice(GETS)).replace(b"Connection: close\r\n", b"")
        reads = self._reads()
        return HostileRequest(
            f"{request!r} repeated, reads={reads}", "http", repeated(request), reads
        )

    def read(self, topic: str, form: str, **query: object) -> HostileRequest:
        query = {"format": form, "limit": 0} | query
        reads = self._reads()
        name = f"/topics/{topic}/messages {query} reads={reads}"
        return HostileRequest(name, "http", http_get(f"/topics/{topic}/messages", **query), reads)

    def follow(self, topic: str) -> HostileRequest:
        query: dict[str, object] = {"from": "first"}
        if self._random.random() < 0.5:
            query["grep"] = self._random.choice(PATTERNS)
        reads = self._random.choice(("stop", "leave"))
        request = http_get(f"/topics/{topic}/follow", **query)
        return HostileRequest(
            f"/topics/{topic}/follow {query} reads={reads}", "http", request, reads
        )

    def by_protocol(self, topic: str) -> HostileRequest:
        command = self._random.choice(
            ("READ %s 0 100000000", "TAIL %s 100000000", "FOLLOW %s first", "FOLLOW %s 0 bytes=1")
        )
        request = command.replace("%s", topic).encode() + b"\r\n"
        if not command.startswith("FOLLOW") or self._random.random() < 0.3:
            request += b"CLOSE\r\n"
        listener, reads = self._random.choice(("tcp", "http")), self._reads()
        if listener == "http":
            request = http_post("/log", "text/plain", request)
        return HostileRequest(
            f"{command} {topic} over {listener} reads={reads}", listener, request, reads
        )

    def asked(self) -> HostileRequest:
        glob = self._random.choice(("*a" * 5000, "[" * 9000, "?" * 60_000, "*" * 8000 + "x", "*"))
        path = self._random.choice(GETS)
        return HostileRequest(f"{path} glob of {len(glob)}", "http", http_get(path, glob=glob))
