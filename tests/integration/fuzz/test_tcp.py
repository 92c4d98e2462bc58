"""The line protocol under any bytes: every reply is the one that the model expects, or none.

Each round is one connection with some commands on it, right, nearly right, or noise, sent in pieces
of any size and ended in any way. Offsets stay gapless and reads give back what was acknowledged,
because the model knows all of it.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.integration.fuzz.failures import Failing, keep
from tests.integration.fuzz.fuzzed_daemon import fuzzed_daemon
from tests.integration.fuzz.grammar import Grammar
from tests.integration.fuzz.model import Model
from tests.integration.fuzz.random_inputs import SEED, Progress, how_many
from tests.integration.fuzz.rounds import BlindRound, Round

INPUTS = how_many(8_000, 600_000)
WARM = min(INPUTS // 2, 20_000)


@pytest.mark.slow
def test_any_bytes_on_the_line() -> None:
    random = Random(SEED)
    progress = Progress("tcp", INPUTS)
    grammar, model = Grammar(random), Model()
    with fuzzed_daemon() as target:
        inputs = looked = 0
        is_warm = False
        model.push(b"known", [b"known good"])
        while inputs < INPUTS:
            is_blind = inputs > 1000 and random.random() < 0.02
            round_ = BlindRound(random, model) if is_blind else Round(random, grammar, model)
            try:
                round_.run(target)
                inputs += round_.inputs
                progress.at(inputs, target.told())
                if inputs - looked > 200:
                    looked = inputs
                    target.look()
                if inputs >= WARM and not is_warm:
                    is_warm = True
                    target.is_warm()
            except AssertionError as error:
                said = keep("tcp", round_.pieces, end=round_.end)
                raise Failing(f"input {inputs}: {error}\n{said}") from error
        target.look_at_last()
        progress.tell(inputs, target.told())
