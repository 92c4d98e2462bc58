"""No request body delays another connection: the largest hostile bodies of every route that stores.

While the daemon parses such a body, another connection sends PING; see `delay_probe.py`.
"""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest
import zstandard

from tests.integration.web.raw_http import dial, status
from tests.support.daemon import HANG_S, Daemon, running
from tests.support.delay_probe import DelayProbe

LIMIT = 8 << 20  # max-batch-bytes
STREAMED = 1 << 20  # enough of a body that is stored while it comes in: each part costs the same
MAX_WAIT_S = 0.1
MAX_GROWTH_BYTES = 64 << 20
ATTEMPTS = 4  # the machine may have been busy with something else


def full(start: bytes, unit: bytes, end: bytes = b"", limit: int = LIMIT) -> bytes:
    """As many units between the two as a body may hold."""
    return start + unit * ((limit - len(start) - len(end)) // len(unit)) + end


class Case(NamedTuple):
    path: str
    kind: str
    body: bytes


TEXT, NDJSON, JSON = "text/plain", "application/x-ndjson", "application/json"
LOKI, STREAM = "/loki/api/v1/push", b'{"streams":[{"stream":{"app":"l"},"values":['
EXPORT = "application/vnd.fdo.journal"
VALUE = b'["1","'
EMPTY = b'{"stream":{},"values":[]}'
CASES = {
    "empty lines": Case("/topics/t", TEXT, full(b"", b"\n")),
    "lines that end in CRLF": Case("/topics/t", TEXT, full(b"", b"\r\n")),
    "one line": Case("/topics/t", TEXT, full(b"", b"x")),
    "NDJSON, empty lines": Case("/topics/t", NDJSON, full(b"", b"\n")),
    "NDJSON, numbers": Case("/topics/t", NDJSON, full(b"", b"0\n")),
    "NDJSON, as many numbers as allowed": Case("/topics/t", NDJSON, b"0\n" * 250_000),
    "NDJSON, one array": Case("/topics/t", NDJSON, full(b"[0", b",0", b"]\n")),
    "JSON, empty strings": Case("/topics/t", JSON, full(b'[""', b',""', b"]")),
    "JSON, numbers": Case("/topics/t", JSON, full(b"[0", b",0", b"]")),
    "JSON, as many as allowed": Case("/topics/t", JSON, b'["\\n"' + b',"\\n"' * 249_999 + b"]"),
    "JSON, arrays": Case("/topics/t", JSON, full(b"[[]", b",[]", b"]")),
    "JSON, nested arrays": Case("/topics/t", JSON, full(b"[" * 400 + b"[]", b",[]", b"]" * 400)),
    "JSON, a string of escapes": Case("/topics/t", JSON, full(b'["', b"\\n", b'"]')),
    "JSON, a string of wide characters": Case(
        "/topics/t", JSON, full('["😀'.encode(), b"a", b'"]')
    ),
    "JSON, an object": Case("/topics/t", JSON, full(b'{"a":[0', b",0", b"]}")),
    "JSON, spaces": Case("/topics/t", JSON, full(b"[", b" ", b"]")),
    "JSON, no JSON": Case("/topics/t", JSON, full(b"[", b"[],", b"[")),
    "Loki, streams": Case(LOKI, JSON, full(b'{"streams":[' + EMPTY, b"," + EMPTY, b"]}")),
    "Loki, empty lines": Case(LOKI, JSON, full(STREAM + VALUE + b'"]', b',["1",""]', b"]}]}")),
    "Loki, as many lines as allowed": Case(
        LOKI, JSON, STREAM + VALUE + b'"]' + b',["1",""]' * 100_000 + b"]}]}"
    ),
    "Loki, values that are numbers": Case(LOKI, JSON, full(STREAM + b"0", b",0", b"]}]}")),
    "Loki, an entry of many parts": Case(LOKI, JSON, full(STREAM + VALUE + b'"', b",0", b"]]}]}")),
    "Loki, metadata": Case(LOKI, JSON, full(STREAM + VALUE + b'",{"a":[0', b",0", b"]}]]}]}")),
    "Loki, one line": Case(LOKI, JSON, full(STREAM + VALUE + "😀".encode(), b"a", b'"]]}]}')),
    "Loki, labels": Case(
        LOKI,
        JSON,
        b'{"streams":[{"stream":{"a":""'
        + b"".join(b',"%d":""' % n for n in range(700_000))
        + b'},"values":[]}]}',
    ),
    "Loki, labels that are repeated": Case(
        LOKI,
        JSON,
        full(
            b'{"streams":[{"stream":{"app":"' + b"x" * 60_000 + b'"},"values":[["1",""]',
            b',["1",""]',
            b"]}]}",
        ),
    ),
    "Loki, another key": Case(LOKI, JSON, full(b'{"x":[0', b",0", b'],"streams":[]}')),
    "bulk, empty lines": Case("/b/_bulk", NDJSON, full(b"", b"\n")),
    "bulk, small documents": Case("/b/_bulk", NDJSON, full(b"", b'{"index":{}}\n{}\n')),
    "bulk, as many documents as allowed": Case(
        "/" + "b" * 255 + "/_bulk", NDJSON, b'{"index":{}}\n{}\n' * 250_000
    ),
    "bulk, deletions": Case("/b/_bulk", NDJSON, full(b"", b'{"delete":{}}\n')),
    "bulk, an action of many parts": Case(
        "/b/_bulk", NDJSON, full(b'{"index":{"a":[[]', b",[]", b"]}}\n{}\n")
    ),
    "bulk, a document of many parts": Case(
        "/b/_bulk", NDJSON, full(b'{"index":{}}\n{"a":[[]', b",[]", b"]}\n")
    ),
    "bulk, indices": Case(
        "/_bulk",
        NDJSON,
        b"".join(b'{"index":{"_index":"i%d"}}\n{}\n' % n for n in range(200_000)),
    ),
    "bulk, names of indices": Case(
        "/_bulk",
        NDJSON,
        b"".join(b'{"index":{"_index":"!%d"}}\n{}\n' % n for n in range(200_000)),
    ),
    "journal, empty lines": Case("/upload", EXPORT, full(b"", b"\n", limit=STREAMED)),
    "journal, small entries": Case("/upload", EXPORT, full(b"", b"A=\n\n", limit=STREAMED)),
    "journal, fields": Case("/upload", EXPORT, full(b"", b"A=\n")),
    "journal, entries of many fields": Case(
        "/upload",
        EXPORT,
        full(b"", b"".join(b"A%d=\xff\n" % n for n in range(1000)) + b"\n", limit=STREAMED),
    ),
    "journal, one field": Case("/upload", EXPORT, full(b"A=", b"x")),
    "journal, large values": Case(
        "/upload", EXPORT, full(b"", b"A=" + b"\x01" * 1_000_000 + b"\n\n")
    ),
    "a document": Case("/b/_doc", JSON, full(b'{"a":[[]', b",[]", b"]}")),
}


# A body is decompressed before it is parsed, whatever it contains.
GZIP = ["empty lines", "JSON, numbers", "JSON, a string of escapes", "bulk, small documents"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("target"), "--http-host", "127.0.0.1:0") as daemon:
        yield daemon


def check(daemon: Daemon, send: Callable[[], bytes]) -> bytes:
    """What is answered; meanwhile no other connection waits for long and memory grows little."""
    for _attempt in range(ATTEMPTS):
        with DelayProbe(daemon, "PING") as pinging:
            got = send()
        said = f"{pinging.longest_s * 1000:.0f} ms, {pinging.grown_bytes >> 20} MiB"
        print(f"{said}, {got[:12]!r}")
        if pinging.longest_s < MAX_WAIT_S and pinging.grown_bytes < MAX_GROWTH_BYTES:
            return got
    raise AssertionError(f"{ATTEMPTS} times; at last {said}")


def start_of_answer(daemon: Daemon, request: bytes) -> bytes:
    """The first bytes of the answer, once all of it has come: some are 85 MB."""
    with dial(daemon) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        start = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                start += piece if len(start) < 1000 else b""
    return start


def posted(case: Case, encoding: str) -> bytes:
    body = gzip.compress(case.body, 1) if encoding == "gzip" else case.body
    head = f"POST {case.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: {case.kind}\r\nContent-Encoding: {encoding}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "encoding"),
    [*((name, "identity") for name in CASES), *((name, "gzip") for name in GZIP)],
)
def test_no_http_body_delays_others(target: Daemon, name: str, encoding: str) -> None:
    request = posted(CASES[name], encoding)
    got = check(target, lambda: start_of_answer(target, request))
    assert status(got) in (200, 201, 204, 400, 413)


# Four deflate blocks with Huffman tables of their own that hold nothing, and a last one.
EMPTY_BLOCKS = bytes.fromhex(
    "04c081000000000090ff6b100007020000000040feaf41001c080000000000f9bf060170200000000000e4ff1a"
)
LAST_BLOCK = bytes.fromhex("05c081000000000090ff6b00")
GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"


@pytest.mark.alone
def test_a_gzip_body_that_takes_long_and_holds_nothing(target: Daemon) -> None:
    body = full(GZIP_HEAD, EMPTY_BLOCKS, LAST_BLOCK + bytes(8))  # which takes a second
    head = "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    got = check(target, lambda: start_of_answer(target, head.encode() + body))
    assert b"the body contains no message" in got


PUSHES = {
    "lines": ("lines", full(b"", b"\n")),
    "sized": ("sized", full(b"0", b" 0", b"\n")),
    "sized, wrong": ("sized", full(b"", b"0 ", b"x\n")),
    "lines+zstd": ("lines+zstd", zstandard.compress(full(b"", b"\n"))),
    "sized+zstd": ("sized+zstd", zstandard.compress(full(b"0", b" 0", b"\n"))),
    "sized+zstd, wrong": ("sized+zstd", zstandard.compress(full(b"1", b" 1", b"\n"))),
}


@pytest.mark.alone
@pytest.mark.parametrize("by", ["tcp", "http"])
@pytest.mark.parametrize("name", PUSHES)
def test_no_push_delays_others(target: Daemon, name: str, by: str) -> None:
    enc, body = PUSHES[name]
    push = f"PUSH p {len(body)} enc={enc}\r\n".encode() + body
    request = posted(Case("/log", "application/octet-stream", push), "identity")
    got = check(
        target, lambda: pushed(target, push) if by == "tcp" else start_of_answer(target, request)
    )
    assert (b"ERR bad-request " if "wrong" in name else b"OK ") in got


def pushed(daemon: Daemon, push: bytes) -> bytes:
    host, _, port = daemon.address.rpartition(":")
    with socket.create_connection((host, int(port)), HANG_S) as line:
        line.sendall(push)
        return line.recv(1000)
