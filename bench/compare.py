"""`python -m bench --compare CHECKOUT`: logd of this checkout against logd of another one.

Each row is opened once per checkout and the two are measured in turn, the first one alternating, so
that other work on the machine affects both. Other servers are neither started nor measured. The
other checkout needs a `.venv` of its own. A ratio above 1 always means that this one is better.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from bench.measure import LOGD, Measure, Row, Setting, Skip, Spread, spread
from bench.processes import ROOT, BenchError, comparing

IN_PROCESS = ("check", "spark-splits")  # their code is imported by the benchmark itself


def compare_rows(rows: Sequence[Row], setting: Setting, other: Path, console: Console) -> int:
    """Print a line per row; the number of rows that could not be compared."""
    failed = 0
    for row in rows:
        if row.name in IN_PROCESS:
            console.print(f"{row.name}: skipped, it runs in the process of the benchmark")
            continue
        try:
            ratio = compare(row, setting, other)
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            failed += 1
            console.print(f"{row.name}: {error}", markup=False)
            continue
        text = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        console.print(f"{row.name}: {text}", markup=False, highlight=False)
    return failed


def compare(row: Row, setting: Setting, other: Path) -> Spread:
    """How many times better logd of this checkout is, turn by turn."""
    checkouts = [ROOT, other.resolve()]
    with ExitStack() as stack:
        measures = {each: _open(row, setting, each, stack) for each in checkouts}
        ratios = []
        for _ in range(setting.sizes.repeat):
            values = {each: _measure(measures[each], each) for each in checkouts}
            ratio = values[ROOT] / values[other.resolve()]
            ratios.append(ratio if row.unit.endswith("/s") else 1 / ratio)
            checkouts.reverse()
    return spread(ratios)


def _open(row: Row, setting: Setting, checkout: Path, stack: ExitStack) -> Measure:
    with comparing(checkout):
        measure = stack.enter_context(row.open(setting))[LOGD]
    if isinstance(measure, Skip):
        raise BenchError(measure.reason)
    return measure


def _measure(measure: Measure, checkout: Path) -> float:
    with comparing(checkout):
        os.sync()
        return measure().value
