"""One connection of the line protocol: what is sent, how it ends, and what has to come back."""

from __future__ import annotations

from random import Random

from tests.integration.fuzz.fuzzed_daemon import FuzzedDaemon
from tests.integration.fuzz.grammar import Grammar
from tests.integration.fuzz.model import Conversation, Due, Model, Stream
from tests.integration.fuzz.random_inputs import mutated, pieces
from tests.integration.fuzz.wire import Replies, exchange, reset
from tests.support.daemon import Reply, batches, wait_until


class Expected:
    """The replies that are due, and how many of them have come."""

    def __init__(self, due: list[Due | Stream]) -> None:
        self.due, self._taken = due, 0
        self._number = 0

    def take(self, reply: Reply) -> None:
        said = str(reply)[:500]
        assert self._taken < len(self.due), f"a reply too many: {said}"
        due = self.due[self._taken]
        assert due.fits(reply), f"reply {self._number} is {said}, not {due.heads}"
        self._number += 1
        self._taken += not isinstance(due, Stream) or due.has_ended

    @property
    def is_complete(self) -> bool:
        left = self.due[self._taken :]
        return not left or (
            len(left) == 1
            and isinstance(left[0], Stream)
            and not left[0].must_end
            and left[0].is_at_end
        )

    def __str__(self) -> str:
        return f"{self._number} replies, and {len(self.due) - self._taken} are missing"


class Round:
    """One connection: what is sent on it, and what has to come back."""

    def __init__(self, random: Random, grammar: Grammar, model: Model) -> None:
        self.conversation = Conversation(model)
        self.pieces: list[bytes] = []
        self.due: list[Due | Stream] = []
        self.inputs = 0
        for _ in range(random.choice((1, 5, 20, 40))):
            self._add(random, grammar)
            if self.conversation.closed or self.conversation.stuck:
                break
            if self.conversation.unfinished and random.random() < 0.5:
                break
        if self.conversation.closed and random.random() < 0.5:
            self.pieces.append(grammar.command())  # nothing behind the end is run
        self.end = random.choice(("half-close", "close", "reset"))
        if self.conversation.stream is not None and random.random() < 0.97:
            self.end = "reset"  # otherwise the daemon sends to it until a heartbeat fails

    def _add(self, random: Random, grammar: Grammar) -> None:
        self.inputs += 1
        kind = random.random()
        data = grammar.command() if kind < 0.95 else random.randbytes(random.randrange(1, 300))
        if kind < 0.25:
            data = mutated(random, data)
        self.due += self.conversation.send(data)
        if self.conversation.stuck:
            self.due.pop()  # it comes in a minute, or never
            data = data[: len(data) - self.conversation.unread_bytes]
        self.pieces += pieces(random, data)

    def run(self, target: FuzzedDaemon) -> None:
        replies, closes, expected = Replies(), self.conversation.closed, Expected(self.due)
        stream = self.conversation.stream
        half_close = self.end == "half-close" and not self.conversation.stuck
        ends = closes or (half_close and stream is None)
        connection = target.dial()

        def feed(data: bytes) -> None:
            replies.feed(data)
            for reply in replies.taken:
                expected.take(reply)
            replies.taken.clear()

        def is_done() -> bool:
            return expected.is_complete and replies.is_between and not ends

        try:
            ended = exchange(
                connection, self.pieces, feed, is_done, target.patience, half_close=half_close
            )
        finally:
            reset(connection) if self.end == "reset" else connection.close()
        assert expected.is_complete, str(expected)
        if stream is not None and stream.has_ended:
            ends = ended  # retention was quicker: only then a half-closed connection ends
        assert ended == ends, "it has closed" if ended else "it stays open"
        assert replies.is_between, "half a reply"


class BlindRound:
    """Pushes whose client is gone before it is answered: what is stored is the first so many."""

    end = "reset"

    def __init__(self, random: Random, model: Model) -> None:
        names = [name for name, topic in model.topics.items() if topic.next and name != b"known"]
        self.name = random.choice(names)
        self._topic = model.topics[self.name]
        count = random.choice((1, 2, 10, 60))
        self._messages = [b"blind %d" % random.randrange(10**9) for _ in range(count)]
        parts = [b"PUSH %s %d\r\n%s\n" % (self.name, len(m) + 1, m) for m in self._messages]
        self.pieces = pieces(random, b"".join(parts)[: -random.choice((1, 3, 20))])
        self.inputs = len(parts)

    def run(self, target: FuzzedDaemon) -> None:
        connection = target.dial()
        exchange(connection, self.pieces, lambda data: None, lambda: True, target.patience)
        reset(connection)
        # While a partition is rolled, pushes wait; they are stored afterwards.
        wait_until(lambda: target.stat(b"connections") == 1)
        wait_until(lambda: target.stat(b"waiting_pushes", self.name) == 0)
        stored = self._stored(target)
        assert stored == self._messages[: len(stored)], f"{stored} of {self._messages}"
        if stored:
            self._topic.add(stored)

    def _stored(self, target: FuzzedDaemon) -> list[bytes]:
        """What the topic has now behind what was known of it."""
        start, found, replies = self._topic.next, list[bytes](), Replies()
        with target.dial() as connection:
            ask = b"READ %s %d 1000\r\n" % (self.name, start)
            exchange(connection, [ask], replies.feed, lambda: bool(replies.taken), target.patience)
        for batch in batches(replies.taken[0].body):
            found += batch.messages[max(0, start - batch.header.offset) :]
        return found
