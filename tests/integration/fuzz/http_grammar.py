"""HTTP requests as clients, shippers and scanners send them: most are right, some nearly."""

from __future__ import annotations

import gzip
import json
from random import Random
from urllib.parse import quote

from tests.integration.fuzz.grammar import TOPICS, Grammar
from tests.integration.fuzz.random_inputs import ODD_NUMBERS, mutated, weighted

ODD_TEXTS = (
    "", "0", "-1", "first", "next", "@0", "@99999999999999999999", "2026-01-31", "0001-01-01",
    "9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00+23:59", "٣", "²", "\x00", "é",
    "\ud800",
    "(", "a{1000}{1000}", "(?i)x", "[[:^alpha:]]", ".*" * 500, "x" * 1001, "\\C", "\\pZ", "%", "+",
)  # fmt: skip
ODD_JSON = (
    "null", "true", "1e999", "-0", "1" * 5000, "[]", "{}", '""', '"\\ud800"', '"\\u0000"',
    "[" * 2000,
    "[" * 500 + "]" * 500, '{"a":' * 2000, "NaN", "Infinity", "[1,]", '"\x01"', "\ufeff[]", '"é"',
    '["a\\nb"]', "[null, 1.5, [], {}]", '{"a": 1, "a": 2}', "[" * 100_000,
)  # fmt: skip
PATHS = (
    "/", "/topics", "/stats", "/metrics", "/openapi.json", "/healthz", "/readyz", "/_cat/health",
    "/nothing", "//", "/topics/", "/topics/a/b/c", "/..%2f..%2fetc/passwd", "/log", "*", "/%",
    "/%ff",
    "http://localhost/healthz", "/topics?glob=a*", "/topics?glob=[", "/topics?glob=%00", "/page.js",
)  # fmt: skip
HOSTS = (
    "localhost",
    "127.0.0.1",
    "127.0.0.1:1775",
    "[::1]",
    "evil.example",
    "",
    "a b",
    "localhost:x",
)


class HttpGrammar:
    """`request` is the bytes of one request, its body included."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.commands = Grammar(random)

    def request(self) -> bytes:
        kinds = (
            (5, self._push), (4, self._messages), (3, self._log), (3, self._loki), (3, self._bulk),
            (3, self._asked), (1, self._follow),
        )  # fmt: skip
        return weighted(self._random, kinds)()

    # -- parts ----------------------------------------------------------------------------------

    def _topic(self) -> str:
        random = self._random
        if random.random() < 0.9:
            return random.choice(TOPICS).decode()
        odd = ("..", "%2e%2e", "a%2fb", "%00", "%ff", "é", "-x", "x" * 129, "")
        return random.choice((*odd, f"n{random.randrange(99)}"))

    def _number(self) -> str:
        random = self._random
        odd = random.choice(ODD_NUMBERS).decode("latin-1")
        return random.choice((str(random.randrange(300)), str(random.randrange(300)), odd))

    def _query(self, **values: str) -> str:
        """Those of them that are there, encoded; some not, and some twice."""
        random, words = self._random, []
        for name, value in values.items():
            if random.random() < 0.4:
                is_raw = random.random() < 0.1 and value.isprintable() and " " not in value
                shown = value if is_raw else quote(value.encode("utf-8", "surrogatepass"))
                words += [f"{name}={shown}"] * random.choice((1, 1, 1, 1, 2))
        if random.random() < 0.05:
            words.append(random.choice(("x=1", "", "=", "&&", "from", "limit=%", "grep=%ff%fe")))
        return f"?{'&'.join(words)}" if words else ""

    def _made(self, method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
        random = self._random
        is_odd = random.random() < 0.04
        lines = [f"{method} {target} HTTP/{random.choice(('1.0', '2.0')) if is_odd else '1.1'}"]
        host = random.choice(HOSTS) if random.random() < 0.06 else "localhost"
        lines += [f"Host: {host}", *headers]
        if random.random() < 0.03:
            lines.append(random.choice((
                "Origin: http://evil.example", "Connection: close", "Expect: 100-continue",
                "Upgrade: websocket\r\nConnection: Upgrade", "Transfer-Encoding: identity",
                "Authorization: Bearer nobody", "Content-Length: 3", "X\t: y", "X: " + "y" * 9000,
                "Accept-Encoding: gzip", "Range: bytes=0-1",
            )))  # fmt: skip
        if body or method in ("POST", "PUT"):
            if random.random() < 0.15:
                body, encoding = self._packed(body)
                lines.append(f"Content-Encoding: {encoding}")
            if random.random() < 0.3:
                lines.append("Transfer-Encoding: chunked")
                body = self._chunked(body)
            else:
                lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body

    def _packed(self, body: bytes) -> tuple[bytes, str]:
        random = self._random
        kind = random.randrange(6)
        if kind == 0:
            body = bytes(random.choice((65536, 65537, 5_000_000)))  # a hostile
        packed = gzip.compress(body, 1)
        if kind == 1:
            packed = mutated(random, packed)
        if kind == 2:
            packed += random.choice((b"x", packed, bytes(10)))
        return packed, random.choice(("gzip",) * 5 + ("x-gzip", "deflate", "gzip, gzip", "GZIP "))

    def _chunked(self, body: bytes) -> bytes:
        random, out = self._random, b""
        while body:
            size = random.randrange(1, 1 + max(len(body) * 2 // 3, 1))
            extension = b";a=b" if random.random() < 0.05 else b""
            out += b"%x%s\r\n%s\r\n" % (size, extension, body[:size])
            body = body[size:]
        return out + (b"0\r\n\r\n" if random.random() < 0.95 else b"0\r\nX: y\r\n\r\n")

    def _json(self) -> str:
        random = self._random
        if random.random() < 0.25:
            return random.choice(ODD_JSON)
        return json.dumps(random.choice(("line", 1, None, {"a": [1]}, "x\ny", "é", {}, "", [[]])))

    # -- requests -------------------------------------------------------------------------------

    def _push(self) -> bytes:
        random = self._random
        kind, body = random.choice((
            ("text/plain", b"one\ntwo\r\n\nthree"),
            ("text/plain", random.randbytes(random.randrange(99))),
            ("application/json", ("[" + ",".join(self._json() for _ in range(3)) + "]").encode()),
            ("application/json", self._json().encode("utf-8", "surrogatepass")),
            ("application/x-ndjson", "\n".join(self._json() for _ in range(3)).encode()),
            ("application/json; charset=x", b'["a", "b"]'),
            ("text/plain", b"x" * random.choice((0, 65534, 65535, 65536, 70000))),
        ))  # fmt: skip
        query = self._query(id=f"{random.choice('pq')}:{self._number()}")
        return self._made("POST", f"/topics/{self._topic()}{query}", body, f"Content-Type: {kind}")

    def _messages(self, route: str = "messages") -> bytes:
        random = self._random
        odd = random.choice(ODD_TEXTS)
        values = {
            "from": self._number(), "since": odd, "until": random.choice((self._number(), odd)),
            "limit": self._number(), "grep": random.choice(("message", odd, "[0-9]+")),
            "case": random.choice("01"), "progress": "1",
            "format": random.choice(("text", "ndjson", "raw", "xml")),
        }  # fmt: skip
        kept = {name: value for name, value in values.items() if random.random() < 0.5}
        accept = random.choice(
            ("*/*", "application/json", "application/vnd.logd.batches", ";,;", "")
        )
        target = f"/topics/{self._topic()}/{route}{self._query(**kept)}"
        return self._made("GET", target, b"", f"Accept: {accept}")

    def _follow(self) -> bytes:
        made = self._messages("follow")
        if self._random.random() < 0.3:
            line = f"\r\nLast-Event-ID: {self._number()}\r\n"
            made = made.replace(b"\r\n", line.encode("latin-1"), 1)
        return made

    def _log(self) -> bytes:
        count = self._random.choice((1, 3, 10))
        body = b"".join(self.commands.command() for _ in range(count))
        return self._made("POST", "/log", body)

    def _loki(self) -> bytes:
        random = self._random
        time_ns = random.choice(("1767225600000000000", "0", "9" * 40, "9" * 5000, "x", "²", ""))
        value = [time_ns, "a line", *random.choice(([], [{"trace": "1"}], [[]], ["x", "y"]))]
        values: object = random.choice(([value], [value] * 3, [[]], [[1, 2]], [], [None]))
        label = random.choice(("app", "job", "topic", "other"))
        name = random.choice(("web", "t0", "-", "..", "é", "x" * 300, ""))
        streams = [{"stream": {label: name}, "values": values}] * random.choice((1, 1, 2))
        body = json.dumps({"streams": streams}) if random.random() < 0.85 else self._json()
        kind = random.choice(("application/json",) * 9 + ("application/x-protobuf",))
        data = body.encode("utf-8", "surrogatepass")
        return self._made("POST", "/loki/api/v1/push", data, f"Content-Type: {kind}")

    def _bulk(self) -> bytes:
        random, lines = self._random, []
        for _ in range(random.choice((0, 1, 2, 5))):
            action = random.choice(("index", "create", "create", "delete", "update", "drop"))
            index = random.choice(("web", "t0", "é", "", "..", None, 5, "x" * 200))
            lines += [json.dumps({action: {"_index": index}}), self._json()]
        data = "\n".join(lines).encode("utf-8", "surrogatepass") + random.choice(
            (b"\n", b"", b"\r\n")
        )
        target = random.choice(("/_bulk", "/web/_bulk", "/%ff/_bulk"))
        return self._made(random.choice(("POST", "PUT")), target, data)

    def _asked(self) -> bytes:
        random = self._random
        method = random.choice(("GET",) * 8 + ("DELETE", "OPTIONS", "PATCH", "POST"))
        path = random.choice((*PATHS, f"/topics/{self._topic()}"))
        return self._made(method, path)
