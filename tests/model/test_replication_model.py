"""The model of replication holds, needs each of its rules, and reaches what it should.

spin translates `replication.pml` into a C program that visits every reachable state. The rules that
can be removed and the witnesses are read from the model, so that none is left out here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.long_run import LONG

MODEL = Path(__file__).with_name("replication.pml")
PAGE = Path(__file__).parents[2] / "docs" / "replication.md"
SYMBOLS = sorted(set(re.findall(r"\b(?:NO|WITNESS)_[A-Z][A-Z_]*\b", MODEL.read_text())))
RULES = [symbol for symbol in SYMBOLS if symbol.startswith("NO_")]
WITNESSES = [symbol for symbol in SYMBOLS if symbol.startswith("WITNESS_")]
BOUNDS = [(3, 2), (3, 3), (4, 2)] if LONG else [(3, 2)]  # epochs, entries in a log
MEMORY_MB = 6_000 if LONG else 2_000

needs_spin = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")), reason="needs spin and gcc"
)


def search(directory: Path, symbols: list[str], options: list[str]) -> str:
    """The report of a search of all states; with -DBFS it ends with a shortest counterexample."""
    defines = [f"-D{symbol}" for symbol in symbols]
    compiler = ["gcc", "-O2", "-w", "-DSAFETY", "-DNOREDUCE", f"-DMEMLIM={MEMORY_MB}", *options]
    for command in (["spin", "-a", *defines, str(MODEL)], [*compiler, "-o", "pan", "pan.c"]):
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
    pan = ["./pan", "-m100000", "-w22"]
    return subprocess.run(pan, cwd=directory, check=True, capture_output=True, text=True).stdout


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "length"), BOUNDS)
def test_the_model_holds(tmp_path: Path, epochs: int, length: int) -> None:
    bounds = [f"EPOCHS={epochs}", f"LENGTH={length}"]
    report = search(tmp_path, bounds, ["-DCOLLAPSE"])
    print(report)
    assert "errors: 0" in report
    assert "Search not completed" not in report
    assert "max search depth too small" not in report


@needs_spin
@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_there_is_a_counterexample(tmp_path: Path, rule: str) -> None:
    assert "assertion violated" in search(tmp_path, [rule], ["-DBFS"])


@needs_spin
@pytest.mark.parametrize("witness", WITNESSES)
def test_a_witness_is_reached(tmp_path: Path, witness: str) -> None:
    assert "assertion violated" in search(tmp_path, [witness], ["-DBFS"])


def test_the_page_names_every_rule_and_witness() -> None:
    named = set(re.findall(r"`((?:NO|WITNESS)_[A-Z_]+)`", PAGE.read_text()))
    assert named == set(SYMBOLS)
