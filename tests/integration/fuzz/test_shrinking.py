"""The same grammar drawn by hypothesis, which makes a failing input small: parser against model.

No daemon: bytes go to `Parser` in pieces, and each request that comes out is one reply that the
model expects. Both close where the other does.
"""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from logd.protocol import Budget, Parser
from logd.wire.requests import Close, Push
from tests.integration.fuzz.grammar import Grammar
from tests.integration.fuzz.model import MAX_BATCH_BYTES, Conversation, Model
from tests.integration.fuzz.random_inputs import mutated, pieces
from tests.support.feeding import Err, seen
from tests.support.long_run import LONG


@settings(
    max_examples=5000 if LONG else 100,
    database=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(random=some.randoms(use_true_random=False))
def test_the_parser_and_the_model_agree(random: Random) -> None:
    conversation, budget = Conversation(Model()), Budget(1 << 30)
    grammar, parser = Grammar(random), Parser(MAX_BATCH_BYTES, budget)
    for _ in range(3):
        data = grammar.command()
        if random.random() < 0.5:
            data = mutated(random, data)
        due = conversation.send(data)
        found = [one for piece in pieces(random, data) for one in seen(parser.feed(piece))]
        if conversation.stuck:
            break
        for expected, request in zip(due, found, strict=False):
            if isinstance(request, Err):
                assert any(head == b"ERR %s" % request.code.encode() for head in expected.heads)
        if not parser.closed and conversation.closed:
            # It is not the parser that says so: CLOSE, and a body that inflates past the limit.
            assert isinstance(found[len(due) - 1], Close | Push)
            break
        assert (len(found), parser.closed) == (len(due), conversation.closed)
        assert parser.unfinished == conversation.unfinished or parser.closed
        if parser.closed:
            break
    parser.release()
    assert budget.used_bytes == 0
