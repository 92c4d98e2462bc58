"""Rows, their targets, and the order of measurements.

A row has named measurements, logd first. They are made in turn, repeatedly, so that other work of
the machine affects all of them. Ratios are taken within each turn; their median and extremes are
reported.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.processes import BenchError
from bench.programs import Programs

LOGD = "logd"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of a run."""

    repeat: int
    seconds: float
    warmup_s: float
    push_bytes: int
    topic_bytes: int
    client_messages: int
    peer_messages: int  # for clients that are much slower
    share: float = 1.0  # of the sizes in the names of rows


FULL = Sizes(3, 1.25, 0.25, 2 << 30, 2 << 30, 5_000_000, 60_000)
QUICK = Sizes(1, 0.5, 0.1, 256 << 20, 256 << 20, 1_000_000, 30_000, share=0.1)


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of all rows."""

    programs: Programs
    sizes: Sizes
    directory: Path
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    value: float  # in the row's unit
    facts: Mapping[str, float] = field(default_factory=dict)  # everything that the program reported


@dataclass(frozen=True, slots=True)
class Skip:
    reason: str


Measure = Callable[[], Sample]
Measures = Mapping[str, Measure | Skip]
Opening = Callable[[Setting], AbstractContextManager[Measures]]


@dataclass(frozen=True, slots=True)
class Target:
    bound: float
    at_most: bool = False
    beside: str | None = None  # the measurement to compare with; None: the value itself

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound


@dataclass(frozen=True, slots=True)
class Point:
    """The position of a row on a line of a plot."""

    plot: str
    line: str
    at: float  # on the x axis
    x_axis: str


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    what: str
    unit: str
    open: Opening
    target: Target | None = None
    more: tuple[Target, ...] = ()  # further targets
    ceiling: str | None = None  # the measurement that does only the unavoidable work
    point: Point | None = None
    full: bool = False  # only with --full

    def targets(self) -> tuple[Target, ...]:
        return (self.target, *self.more) if self.target else self.more

    def aim(self, beside: str | None) -> Target | None:
        """The target for the ratio to this measurement, or for the value itself."""
        return next((target for target in self.targets() if target.beside == beside), None)


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float


@dataclass(slots=True)
class Result:
    row: Row
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failure: str | None = None

    def values(self, name: str) -> Spread:
        return spread([sample.value for sample in self.samples[name]])

    def ratio(self, name: str, of: str = LOGD) -> Spread:
        """The values of `of` divided by those of `name`, turn by turn."""
        pairs = zip(self.samples[of], self.samples[name], strict=True)
        return spread([ours.value / theirs.value for ours, theirs in pairs])

    def fact(self, name: str, fact: str) -> float | None:
        facts = [s.facts[fact] for s in self.samples[name] if fact in s.facts]
        return median(facts) if facts else None

    def met(self, target: Target) -> bool | None:
        """None if it cannot be decided."""
        if self.failure or (target.beside or LOGD) not in self.samples:
            return None
        value = self.ratio(target.beside) if target.beside else self.values(LOGD)
        return target.met(value.median)


def spread(values: list[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def run_row(row: Row, setting: Setting) -> Result:
    result = Result(row)
    try:
        with row.open(setting) as opened:
            _take_turns(opened, setting.sizes.repeat, result)
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        result.failure = str(error)  # the other rows are still measured
    return result


def _take_turns(opened: Measures, repeat: int, result: Result) -> None:
    result.skipped = {name: one.reason for name, one in opened.items() if isinstance(one, Skip)}
    measures = {name: one for name, one in opened.items() if not isinstance(one, Skip)}
    for _ in range(repeat):
        turn: dict[str, Sample] = {}
        for name, measure in measures.items():
            os.sync()  # so that earlier writes do not slow down this measurement
            turn[name] = measure()
        for name, sample in turn.items():  # only complete turns: a ratio needs both values
            result.samples.setdefault(name, []).append(sample)
