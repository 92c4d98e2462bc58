"""HTTP under any bytes: no 500, no traceback, no hang, and an answer to each whole request.

How many requests some bytes are is asked of the parser that the daemon uses too; what is tested is
what the daemon makes of them. A stream that never ends is left after its first bytes.
"""

from __future__ import annotations

from random import Random

import httptools
import pytest

from tests.integration.fuzz.failures import Failing, keep
from tests.integration.fuzz.fuzzed_daemon import FuzzedDaemon, fuzzed_daemon
from tests.integration.fuzz.http_grammar import HttpGrammar
from tests.integration.fuzz.random_inputs import SEED, Progress, how_many, mutated, pieces
from tests.integration.fuzz.wire import exchange, reset

INPUTS = how_many(2_500, 150_000)
WARM = min(INPUTS // 2, 10_000)


class Requests:
    """How many whole requests there are in some bytes, and how it goes on behind them."""

    def __init__(self, data: bytes) -> None:
        self.whole, self.is_sound, self.keeps_alive = 0, True, True
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.keeps_alive = False
        except httptools.HttpParserError:
            self.is_sound = False

    def on_message_complete(self) -> None:
        self.whole += 1
        self.keeps_alive = self._parser.should_keep_alive()


class Responses:
    """Counts whole responses and looks at what each says."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.heads = self.size = 0
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        self.heads += 1
        status = self._parser.get_status_code()
        assert status == 100 or 200 <= status < 600, status
        assert status not in (500, 501, 502), f"status {status}"

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 100:
            self.statuses.append(self._parser.get_status_code())


class HttpRound:
    def __init__(self, random: Random, grammar: HttpGrammar) -> None:
        data, self.inputs = b"", 0
        for _ in range(random.choice((1, 3, 10))):
            self.inputs += 1
            one = grammar.request() if random.random() < 0.97 else random.randbytes(99)
            self.is_mutated = random.random() < 0.25
            data += mutated(random, one) if self.is_mutated else one
            if b"follow" in one.lower() or self.is_mutated:
                break
        self.streams = any(word in data.lower() for word in (b"follow", b"wait="))
        self.requests = Requests(data)
        self.pieces = pieces(random, data)
        self.end = random.choice(("close", "reset"))

    def run(self, target: FuzzedDaemon) -> None:
        """A request that is not whole gets no answer, and its connection is left."""
        responses, wanted = Responses(), self.requests

        def is_done() -> bool:
            if self.streams and wanted.whole:
                return responses.heads >= 1
            return len(responses.statuses) >= wanted.whole and wanted.is_sound

        connection = target.dial(http=True)
        try:
            ended = exchange(connection, self.pieces, responses.feed, is_done, target.patience)
        finally:
            reset(connection) if self.end == "reset" else connection.close()
        if not wanted.is_sound and not (self.streams and wanted.whole):
            assert ended, "it goes on behind what is not HTTP"
            assert responses.heads, "it closed without a word"
        elif ended and wanted.whole:
            assert responses.heads, "it closed without a word"


@pytest.mark.slow
def test_any_bytes_over_http() -> None:
    random = Random(SEED)
    progress = Progress("http", INPUTS)
    grammar = HttpGrammar(random)
    with fuzzed_daemon() as target:
        inputs = looked = 0
        is_warm = False
        while inputs < INPUTS:
            round_ = HttpRound(random, grammar)
            try:
                round_.run(target)
                inputs += round_.inputs
                progress.at(inputs, target.told())
                if inputs - looked > 100:
                    looked = inputs
                    target.look()
                if inputs >= WARM and not is_warm:
                    is_warm = True
                    target.is_warm()
            except (AssertionError, httptools.HttpParserError) as error:
                said = keep("http", round_.pieces, end=round_.end)
                raise Failing(f"input {inputs}: {error}\n{said}") from error
        target.look_at_last()
        progress.tell(inputs, target.told())
