"""Atheris, where it is installed: each pure part, guided by coverage, starting from the grammar."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from logd.batch import body_sum, encode_header
from tests.integration.fuzz.failures import BUILD
from tests.integration.fuzz.grammar import Grammar
from tests.integration.fuzz.http_grammar import HttpGrammar
from tests.integration.fuzz.random_inputs import SEED
from tests.support.daemon import ROOT
from tests.support.long_run import LONG

RUNS = 200_000 if LONG else 1_500
SEEDS = 60
GUIDED = (sys.executable, "-m", "tests.integration.fuzz.guided")


def _commands(random: Random, grammar: Grammar) -> bytes:
    return random.randbytes(1) + b"".join(grammar.command() for _ in range(3))[:2000]


def _batches(random: Random, grammar: Grammar) -> bytes:
    body = grammar._body()[0]
    return encode_header(random.randrange(99), 1, len(body), 10**12, "lines", body_sum(body)) + body


def _bodies(random: Random, grammar: Grammar) -> bytes:
    return grammar._body()[0][:4000]


def _replies(random: Random, grammar: Grammar) -> bytes:
    lines = (
        b"OK\r\n",
        b"OK 3 4\r\n",
        b"TEXT 5\r\nabcd\n",
        b"ERR busy x\r\n",
        b"BATCHES 1 2 3\r\nabc",
    )
    return random.randbytes(1) + b"".join(random.choices(lines, k=4))


def _frames(random: Random, grammar: Grammar) -> bytes:
    lines = (
        b"<34>1 - - - - - - hello\n",
        b"12 <34>1 counted",
        b"<1>old\r\n",
        b"70000 x",
        b"0 ",
        b"\0\n",
    )
    return random.randbytes(1) + b"".join(random.choices(lines, k=4))


def _requests(random: Random, grammar: Grammar) -> bytes:
    return HttpGrammar(random).request().partition(b"\r\n\r\n")[2][:4000]


FROM: dict[str, Callable[[Random, Grammar], bytes]] = {
    "parser": _commands, "scanner": _batches, "bodies": _bodies, "replies": _replies,
    "frames": _frames, "http": _requests,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris does not install here")
@pytest.mark.parametrize("target", FROM)
def test_guided_by_coverage(target: str, tmp_path: Path) -> None:
    random = Random(SEED)
    grammar = Grammar(random)
    for number in range(SEEDS):
        (tmp_path / f"seed-{number}").write_bytes(FROM[target](random, grammar))
    BUILD.mkdir(parents=True, exist_ok=True)
    command = [*GUIDED, target, str(tmp_path)]
    command += [f"-atheris_runs={RUNS}", f"-seed={SEED}", f"-artifact_prefix={BUILD}/{target}-"]
    command += ["-timeout=10", "-rss_limit_mb=1024", "-max_len=4096"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = f"run it again: {' '.join(GUIDED)} {target} <the file it names>"
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{told}"
    assert f"Done {RUNS} " in done.stderr + done.stdout
