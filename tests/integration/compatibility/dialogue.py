r"""Replays a recorded dialogue with a daemon, and renders its replies in the form of the recording.

A recording is a text file. It starts with `name: value` lines: `daemon:` gives flags of the daemon,
`data:` an archive that holds its data directory, `protocol: http` selects HTTP. The steps follow:

    > text        the client sends the text and CRLF; `>> text` ends in LF, `>| text` in nothing
    >* 3 text     the client sends the text three times
    >!            the client closes its sending side
    ? text        the client repeats the command in the next `>` line until its reply has this line
    < text        first line of a reply; `<< text` and `<| text` are its body
    <* 3 text     three equal lines of a body
    <+ text       a header of an HTTP response
    <!            the server has closed the connection
    b> text       the same on another connection

Backslash escapes stand for bytes, `#` starts a comment. In HTTP, `> ` lines are the request line
and headers, the others are the body; Host and Content-Length are added.

Replies are shown as they are, except for values that differ from run to run (`<time>`, `<id>`) and
text for people (`...`). Sums of batch headers are verified before they are replaced by `<head>`.
With `data:`, stored times and ids are part of the recording and must match.
"""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import time
from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO, NamedTuple

from xxhash import xxh3_64_hexdigest, xxh32_hexdigest

from tests.support.daemon import HANG_S, Daemon

_STEP = re.compile(r"([a-z]?)([<>?])([<>|!*+]?)(?: (.*))?")
_MAX_SHOWN_BYTES = 4000  # of a line
_ERROR_FIELDS = rb"first=\d+ next=\d+|last=\d+"
_USUAL_HEADERS = {
    "content-security-policy", "cross-origin-resource-policy", "referrer-policy",
    "x-content-type-options",
}  # fmt: skip

Substitutions = list[tuple[re.Pattern[bytes], bytes]]

# The first list replaces values of a fixed length: the length of the whole is still compared.
_STORED_VALUES: Substitutions = [
    (re.compile(rb"^id: [0-9a-f]{32}$", re.M), b"id: <id>"),
    (re.compile(rb"(?<= )1\d{12}\b"), b"<time>"),
    (re.compile(rb'"id":"[0-9a-f]{32}"'), b'"id":"<id>"'),
    (re.compile(rb'("offset": \d+, "time": )"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z"'), rb'\1"<time>"'),
]
_VARIABLE_VALUES: Substitutions = [
    (re.compile(rb"^(version|pid|uptime_s|clock_behind_ms|data-dir): .*$", re.M), rb"\1: ..."),
    (re.compile(rb'("(?:pid|uptime_s|clock_behind_ms|took)": ?)\d+'), rb"\1..."),
    (re.compile(rb'"version":"\d+\.\d+\.\d+"'), rb'"version":"..."'),
    (re.compile(rb'("(?:text|reason)": ?"(?:%b)?)(?:[^"\\]|\\.)*"' % _ERROR_FIELDS), rb'\1..."'),
    (re.compile(rb"^(# HELP \w+) .*$", re.M), rb"\1 ..."),
    (re.compile(rb'(logd_build_info\{version=")[^"]*'), rb"\1..."),
    (
        re.compile(
            rb"^(logd_(?:uptime_seconds|disk_free_bytes|resident_memory_bytes|open_descriptors"
            rb"|housekeeping_seconds_since_success\{.*\})) \S+$",
            re.M,
        ),
        rb"\1 ...",
    ),
]


class Recording(NamedTuple):
    settings: dict[str, str]
    lines: list[str]

    @classmethod
    def parse(cls, text: str) -> Recording:
        lines, settings = text.splitlines(), {}
        while match := re.fullmatch(r"(daemon|data|protocol): (.*)", lines[0]):
            settings[match[1]] = match[2]
            lines.pop(0)
        return cls(settings, lines)

    def replay(self, daemon: Daemon, piece_bytes: int = 0) -> str:
        """The text of this recording, with the replies of `daemon` in place of the recorded."""
        is_exact = "data" in self.settings
        connections: dict[str, TcpConnection | HttpConnection] = {}
        shown = [f"{name}: {value}" for name, value in self.settings.items()]
        for line in self.lines:
            if not line or line.startswith("#"):
                shown.append(line)
                continue
            step = _STEP.fullmatch(line)
            assert step is not None, f"not a step of a dialogue: {line}"
            name, side, kind, text = step.groups(default="")
            if name not in connections:
                opened = HttpConnection if "protocol" in self.settings else TcpConnection
                connections[name] = opened(daemon, is_exact, piece_bytes)
            if side == "<" and kind in ("", "!"):
                connections[name].send_pending()
                try:
                    reply = connections[name].receive(text)
                except TimeoutError:
                    raise AssertionError("\n".join(["no reply to:", *shown[-5:]])) from None
                shown += [f"{name}{received}" for received in reply]
            elif side != "<":
                shown.append(line)
                for other in connections.values():
                    if other is not connections[name]:
                        other.send_pending()
                connections[name].add(side + kind, text)
        for name, connection in connections.items():
            shown += [f"{name}{received}" for received in connection.finish()]
        return "\n".join(shown) + "\n"


class TcpConnection:
    def __init__(self, daemon: Daemon, is_exact: bool, piece_bytes: int) -> None:
        host, _, port = daemon.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), HANG_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._is_exact, self._piece_bytes = is_exact, piece_bytes
        self._pending, self._awaited = b"", ""

    def add(self, kind: str, text: str) -> None:
        if kind == ">!":
            self.send_pending()
            self._socket.shutdown(socket.SHUT_WR)
        elif kind == "?":
            self.send_pending()
            self._awaited = text
        elif self._awaited:
            self._repeat(text)
        else:
            self._pending += sent_bytes(kind, text)

    def send_pending(self) -> None:
        step = self._piece_bytes or max(1, len(self._pending))
        for at in range(0, len(self._pending), step):
            self._socket.sendall(self._pending[at : at + step])
        self._pending = b""

    def _repeat(self, command: str) -> None:
        awaited, self._awaited = f"<< {self._awaited}", ""
        deadline_s = time.monotonic() + HANG_S
        while time.monotonic() < deadline_s:
            self._socket.sendall(sent_bytes(">", command))
            if awaited in self.receive(""):
                return
        raise AssertionError(f"{command} never said {awaited!r}")

    def receive(self, recorded: str) -> list[str]:
        return next(tcp_replies(self._stream, self._is_exact, recorded), ["<!"])

    def finish(self) -> list[str]:
        """Whatever the recording does not show."""
        self.send_pending()
        with self._stream, self._socket:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # closed by the server
            return [line for reply in tcp_replies(self._stream, self._is_exact) for line in reply]


class HttpConnection:
    def __init__(self, daemon: Daemon, is_exact: bool, piece_bytes: int) -> None:
        self._connection = http.client.HTTPConnection(daemon.http, timeout=HANG_S)
        self._is_exact = is_exact
        self._lines: list[str] = []
        self._body = b""
        self._path = ""
        self._usual_headers: list[str] = []

    def add(self, kind: str, text: str) -> None:
        if kind == ">":
            self._lines.append(text)
        else:
            self._body += sent_bytes(kind, text)

    def send_pending(self) -> None:
        if not self._lines:
            return
        method, self._path = self._lines[0].split(" ", 1)
        headers = {"Host": "localhost"} | dict(line.split(": ", 1) for line in self._lines[1:])
        has_body = method in ("POST", "PUT")
        self._connection.request(method, self._path, self._body if has_body else None, headers)
        self._lines, self._body = [], b""

    def receive(self, recorded: str) -> list[str]:
        response = self._connection.getresponse()
        kind = response.getheader("content-type", "")
        shown, is_fixed_length = self._shown(response.status, kind, response.read())
        if response.status >= 400:  # the server may close it; the next request opens another
            self._connection.close()
        return [f"< {response.status}", *self._headers(response, is_fixed_length), *shown]

    def _shown(self, status: int, kind: str, body: bytes) -> tuple[list[str], bool]:
        """The lines of a body, and whether its length is the same in every run."""
        if self._path == "/log" and status == 200:
            replies = tcp_replies(io.BytesIO(body), self._is_exact)
            return [f"<< {line}" for reply in replies for line in reply], False
        if kind.startswith("text/html"):
            return ["<< ..."], False
        if self._path == "/openapi.json":
            return [f"<< {line}" for line in openapi_lines(body)], False
        if kind == "application/vnd.logd.batches" and not self._is_exact:
            body = without_times(body)
        body, is_variable = replace_values(body, self._is_exact)
        return shown_body(body), not is_variable

    def _headers(self, response: http.client.HTTPResponse, is_fixed_length: bool) -> list[str]:
        headers = sorted((name.lower(), value) for name, value in response.getheaders())
        usual = [f"<+ {name}: {value}" for name, value in headers if name in _USUAL_HEADERS]
        shown = [*usual] if usual != self._usual_headers else ["<+ (usual headers)"]
        self._usual_headers = usual
        for name, value in headers:
            if name == "etag" or (name == "content-length" and not is_fixed_length):
                value = "<value>"
            if name not in _USUAL_HEADERS:
                shown.append(f"<+ {name}: {value}")
        return shown

    def finish(self) -> list[str]:
        self._connection.close()
        return []


# -- rendering ------------------------------------------------------------------------------------


def sent_bytes(kind: str, text: str) -> bytes:
    count = "1"
    if kind == ">*":
        count, _, text = text.partition(" ")
    end = {">": b"\r\n", ">>": b"\n"}.get(kind, b"")
    return int(count) * text.encode().decode("unicode_escape").encode("latin-1") + end


def tcp_replies(stream: BinaryIO, is_exact: bool, recorded: str = "") -> Iterator[list[str]]:
    """Each reply up to the end of the stream."""
    while head := stream.readline():
        assert head.endswith(b"\r\n"), head
        words = head.split()
        body = stream.read(int(words[-1])) if words[0] in (b"BATCHES", b"TEXT") else b""
        if recorded == "TEXT ..." and words[0] == b"TEXT":
            yield ["< TEXT ..."]
            continue
        if words[0] == b"ERR":
            head = re.sub(
                rb"(ERR [a-z-]+(?: (?:%b))?) ?[ -~]*\r" % _ERROR_FIELDS, rb"\1 ...\r", head
            )
        if words[0] == b"BATCHES" and not is_exact:
            body = without_times(body)
        if words[0] == b"TEXT":
            body, is_variable = replace_values(body, is_exact)
            head = b"TEXT <bytes>\r\n" if is_variable else head
        yield [f"< {escaped(head[:-2])}", *shown_body(body)]


def shown_body(body: bytes) -> list[str]:
    *lines, rest = body.split(b"\n")
    shown = []
    for line, equal_lines in groupby(map(escaped, lines)):
        count = len(list(equal_lines))
        shown += [f"<< {line}"] * count if count < 4 else [f"<* {count} {line}"]
    return shown + ([f"<| {escaped(rest)}"] if rest else [])


def escaped(data: bytes) -> str:
    if len(data) > _MAX_SHOWN_BYTES:
        return f"({len(data)} bytes with the XXH3-64 {xxh3_64_hexdigest(data)})"
    return data.decode("latin-1").encode("unicode_escape").decode()


def replace_values(body: bytes, is_exact: bool) -> tuple[bytes, bool]:
    """The body without what differs from run to run, and whether its length differs too."""
    for pattern, replacement in [] if is_exact else _STORED_VALUES:
        body = pattern.sub(replacement, body)
    found = 0
    for pattern, replacement in _VARIABLE_VALUES:
        body, count = pattern.subn(replacement, body)
        found += count
    return body, found > 0


def without_times(batches: bytes) -> bytes:
    """Batches without their times and the sums of their headers, which are verified here."""
    shown, at = [], 0
    while at < len(batches):
        end = batches.index(b"\r\n", at) + 2
        covered, _, head_sum = batches[at : end - 2].rpartition(b" ")
        assert xxh32_hexdigest(covered + b" ").encode() == head_sum, covered
        words = covered.split(b" ")
        at = end + int(words[3])
        assert len(words[4]) == 13, covered
        words[4] = b"<time>"
        shown += [b" ".join(words), b" <head>\r\n", batches[end:at]]
    return b"".join(shown)


def openapi_lines(body: bytes) -> Iterator[str]:
    """A line for each path, without the texts; of errors, only status and content types."""

    def pruned(value: object) -> object:
        if isinstance(value, dict):
            texts = ("summary", "description", "version")
            return {
                name: sorted(part.get("content", ())) if name[:1] in "45" else pruned(part)
                for name, part in value.items()
                if name not in texts
            }
        return [pruned(part) for part in value] if isinstance(value, list) else value

    document = json.loads(body)
    for path, methods in document.pop("paths").items():
        yield f"{path} {json.dumps(pruned(methods), sort_keys=True)}"
    yield json.dumps(pruned(document), sort_keys=True)
