"""The benchmark's table and verdicts, from made-up samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.client_task import Task
from bench.measure import (
    LOGD,
    QUICK,
    Measures,
    Result,
    Row,
    Sample,
    Setting,
    Target,
    run_row,
)
from bench.processes import BenchError
from bench.programs import Programs
from bench.rows import ROWS

LATENCIES = {"p50_us": 12345.0, "p99_us": 123456.0}


def shown(results: list[Result], width: int = 100) -> str:
    console = Console(file=StringIO(), width=width)
    report.show(console, results)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def measured(row: Row, ours: list[float], theirs: dict[str, list[float]]) -> Result:
    everyone = {LOGD: ours, **theirs}
    return Result(
        row, {name: [Sample(v, LATENCIES) for v in values] for name, values in everyone.items()}
    )


def client_row(*more: Target) -> Row:
    (row,) = (row for row in ROWS if row.name == "client-writer")
    return Row("some-row", "what it does", "/s", row.open, Target(3e6), more)


@pytest.mark.parametrize("size", [1.23456, 98.7654, 12345.6])
def test_nothing_is_cut_off_at_100_columns(size: float) -> None:
    results = []
    for row in ROWS:
        ours = size * {"/s": 1000, "s": 0.001}.get(row.unit, 1)
        others = {t.beside: [ours * 9, ours / 654] for t in row.targets() if t.beside}
        others["nats-py push"] = [ours * 87.65, ours * 0.123]
        results.append(measured(row, [ours, ours / 2], others))
    assert words(shown(results)) == words(shown(results, width=300))


def words(text: str) -> list[str]:
    return sorted(word for word in text.split() if word.strip("─"))


def test_each_target_is_judged_beside_the_measurement_it_names() -> None:
    row = client_row(Target(30, beside="redis-py"), Target(80, beside="nats-py"))
    result = measured(row, [4e6, 4e6], {"redis-py": [100e3, 100e3], "nats-py": [80e3, 80e3]})
    assert [result.met(target) for target in row.targets()] == [True, True, False]
    assert "2 of 3 targets met" in shown([result])


def test_a_measurement_that_was_skipped_is_neither_met_nor_missed() -> None:
    row = client_row(Target(30, beside="redis-py"))
    result = measured(row, [4e6], {})
    result.skipped["redis-py"] = "no redis-server here"
    text = shown([result])
    assert "1 of 1 targets met" in text
    assert "no result for redis-py: no redis-server here" in text


def test_a_row_that_fails_in_a_turn_keeps_the_turns_before_it() -> None:
    answers = iter([4.0, 5.0])

    def theirs() -> Sample:
        if (answer := next(answers, None)) is None:
            raise BenchError("redis has gone away")
        return Sample(answer)

    @contextmanager
    def opened(setting: Setting) -> Iterator[Measures]:
        yield {LOGD: lambda: Sample(8.0), "redis": theirs}

    row = Row("some-row", "what it does", "/s", opened, Target(1.0, beside="redis"))
    result = run_row(row, Setting(Programs(Path(), 1), replace(QUICK, repeat=3), Path(), 1))
    assert result.failure == "redis has gone away"
    assert [sample.value for sample in result.samples["redis"]] == [4, 5]
    assert result.ratio("redis").high == 2
    assert "0 of 0 targets met" in shown([result])  # a row that failed is not judged


def test_a_row_that_fails_at_once_is_shown_as_failed() -> None:
    @contextmanager
    def opened(setting: Setting) -> Iterator[Measures]:
        raise BenchError("logd does not start")
        yield {}

    setting = Setting(Programs(Path(), 1), QUICK, Path(), 1)
    text = shown([run_row(Row("some-row", "what it does", "/s", opened), setting)])
    assert "some-row: FAILED: logd does not start" in text


def test_ratios_are_taken_turn_by_turn() -> None:
    result = measured(client_row(), [4e6, 9e6, 2e6], {"redis-py": [1e6, 3e6, 2e6]})
    ratio = result.ratio("redis-py")
    assert (ratio.low, ratio.median, ratio.high) == (1, 3, 4)


@pytest.mark.parametrize(("seen", "seen_bytes"), [(1999, 198000), (2000, 197999)])
def test_a_client_that_read_another_count_or_sum_fails(seen: int, seen_bytes: int) -> None:
    task = Task("read", "127.0.0.1:1", "t", 2000, 100, 1)
    task.check_read(2000, 198000)
    with pytest.raises(SystemExit):
        task.check_read(seen, seen_bytes)


def test_the_messages_are_as_many_and_as_long_as_asked() -> None:
    values = list(Task("write", "127.0.0.1:1", "t", 3000, 100, 1).values())
    assert len(values) == 3000
    assert {len(value) for value in values} == {99}
