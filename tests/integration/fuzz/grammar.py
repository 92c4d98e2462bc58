"""Commands of the line protocol as a client could send them: most are right, some nearly."""

from __future__ import annotations

from random import Random

from xxhash import xxh3_64_hexdigest

from logd.batch import compress, encode_header
from tests.integration.fuzz.random_inputs import ODD_NUMBERS, weighted

TOPICS = (b"app", b"web", b"t0", b"a.b-c_d", b"x" * 128)
BAD_TOPICS = (b"../x", b"/etc/x", b".", b"a/b", b"a\0b", b"-rf", b"y" * 129, b"", b"caf\xc3\xa9")
NAMES = (b"billing", b"audit", b"a.b_c-d", b"n" * 64)
PRODUCERS = (b"p", b"q.r-s")
ENDS = ((8, b"\r\n"), (3, b"\n"))


class Grammar:
    """`command` is the bytes of one command, its body included."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers = dict.fromkeys(PRODUCERS, 0)

    def command(self) -> bytes:
        kinds = (
            (14, self._plain), (8, self._pushed), (5, self._one_line), (6, self._read),
            (2, self._tail), (3, self._follow), (2, self._commit), (2, self._cursor),
            (2, self._asked), (2, self._bare), (1, self._unknown),
        )  # fmt: skip
        return weighted(self._random, kinds)()

    # -- words ----------------------------------------------------------------------------------

    def _topic(self) -> bytes:
        random = self._random
        if random.random() < 0.04:
            return random.choice(BAD_TOPICS)
        return random.choice(TOPICS) if random.random() < 0.97 else b"n%d" % random.randrange(99)

    def _number(self, most: int) -> bytes:
        if self._random.random() < 0.06:
            return self._random.choice(ODD_NUMBERS)
        return b"%d" % self._random.randrange(most)

    def _verb(self, verb: bytes) -> bytes:
        return self._random.choice((verb, verb, verb, verb.lower(), verb.title()))

    def _line(self, *words: bytes) -> bytes:
        return b" ".join(words) + weighted(self._random, ENDS)

    def _message(self) -> bytes:
        random = self._random
        kind = random.randrange(10)
        if kind < 5:
            return b"message %d" % random.randrange(10**6)
        if kind < 7:
            return random.randbytes(random.randrange(60)).replace(b"\n", b"\r")
        if kind == 7:
            return b"PUSH app 5\r"
        if kind == 8:
            return encode_header(random.randrange(100), 1, 2, 10**12, "lines", "0" * 16)[:-1]
        return b"x" * random.choice((0, 1, 1023, 1024, 4096, 16384, 20000))

    def _messages(self) -> list[bytes]:
        return [self._message() for _ in range(self._random.choice((1, 1, 1, 2, 3, 10)))]

    # -- pushes ---------------------------------------------------------------------------------

    def _plain(self) -> bytes:
        body = b"".join(message + b"\n" for message in self._messages())
        one = self._line(self._verb(b"PUSH"), self._topic(), b"%d" % len(body)) + body
        return one * self._random.choice((1, 1, 1, 1, 3))

    def _pushed(self) -> bytes:
        """With options."""
        random = self._random
        body, enc = self._body()
        words = [self._verb(b"PUSH"), self._topic(), b"%d" % len(body)]
        given = [b"enc=" + enc] if enc != b"lines" or random.random() < 0.2 else []
        if random.random() < 0.3:
            given.append(b"count=" + self._number(4))
        if random.random() < 0.4:
            sum_ = xxh3_64_hexdigest(body).encode()
            given.append(b"sum=" + (sum_ if random.random() < 0.8 else sum_[::-1]))
        if random.random() < 0.4:
            given.append(b"id=" + self._id())
        if random.random() < 0.03:
            given.append(random.choice((b"enc=gap", b"wait=1", b"count", b"=", b"id=p", b"sum=0")))
        random.shuffle(given)
        return self._line(*words, *given) + body

    def _body(self) -> tuple[bytes, bytes]:
        random, messages = self._random, self._messages()
        body, enc = b"".join(message + b"\n" for message in messages), "lines"
        if random.random() < 0.5:
            messages = [message + random.choice((b"", b"\n\n")) for message in messages]
            sizes = b" ".join(b"%d" % len(message) for message in messages)
            body, enc = b"%s\n%s" % (sizes, b"".join(messages)), "sized"
        kind = random.random()
        if kind < 0.25:
            body, enc = compress(body, enc)
        elif kind < 0.27:
            body, enc = compress(bytes(random.choice((65536, 65537, 10**7))) + b"\n", enc)
        return body, enc.encode()

    def _id(self) -> bytes:
        """Mostly the number that is due, else one that was or is not yet."""
        random = self._random
        producer = random.choice(PRODUCERS)
        step = random.choice((1, 1, 1, 1, 1, 0, 0, 2, -3))
        self._numbers[producer] = max(0, self._numbers[producer] + step)
        if random.random() < 0.03:
            return producer + b":" + random.choice(ODD_NUMBERS)
        return b"%s:%d" % (producer, self._numbers[producer])

    def _one_line(self) -> bytes:
        line = self._line(self._verb(b"PUSH"), self._topic())
        message = self._message()
        if self._random.random() < 0.01:
            message = b"y" * self._random.choice((65535, 65536, 65537, 65540))
        return line + message + weighted(self._random, ENDS)

    # -- everything else ------------------------------------------------------------------------

    def _where(self) -> bytes:
        where = (b"first", b"next", b"@0", b"@9999999999999", self._number(40), b"")
        return self._random.choice(where) or self._number(5000)

    def _follow(self) -> bytes:
        random = self._random
        words = [self._topic(), self._where()]
        if random.random() < 0.5:
            words.append(b"bytes=" + random.choice((self._number(2000), b"65536", b"1048576")))
        if random.random() < 0.03:
            words.append(random.choice((b"wait=1", b"bytes", b"bytes=1", b"5")))
        one = self._line(self._verb(b"FOLLOW"), *words)
        return one * random.choice((1, 1, 1, 1, 3))

    def _read(self) -> bytes:
        random = self._random
        words = [self._topic(), self._where(), self._number(20)]
        if random.random() < 0.5:
            words.append(b"bytes=" + self._number(2000))
        if random.random() < 0.3:
            words.append(b"wait=%d" % random.randrange(3))
        return self._line(self._verb(b"READ"), *words)

    def _tail(self) -> bytes:
        return self._line(self._verb(b"TAIL"), self._topic(), self._number(20))

    def _commit(self) -> bytes:
        random = self._random
        name = random.choice((*NAMES, b"c%d" % random.randrange(30), b"", b"a b", b"n" * 65))
        offset = random.choice((b"-", self._number(40), self._number(40)))
        return self._line(self._verb(b"COMMIT"), self._topic(), name, offset)

    def _cursor(self) -> bytes:
        words = [self._topic(), self._random.choice(NAMES)][: self._random.choice((1, 2, 2))]
        return self._line(self._verb(b"CURSOR"), *words)

    def _asked(self) -> bytes:
        random = self._random
        words = random.choice(([], [self._topic()], [random.choice((b"*", b"a*", b"[!a]?*"))]))
        verb = random.choice((b"STATS", b"TOPICS", b"PARTITIONS"))
        return self._line(self._verb(verb), *words)

    def _bare(self) -> bytes:
        verbs = (b"PING", b"PING", b"HELP", b"CONFIG", b"PING now", b"CLOSE")
        return self._line(self._verb(self._random.choice(verbs)))

    def _unknown(self) -> bytes:
        lines = (
            b"GET / HTTP/1.1", b"POST /log HTTP/1.1", b"Host: x", b"AUTH secret", b"QUIT", b"",
            b"\x16\x03\x01\x02", b"PUSH", b"PUSH app", b"PUSH app x", b"STATS x HTTP/1.0",
            b"z" * 2000,
        )  # fmt: skip
        return self._line(self._random.choice(lines))
