"""Formats results as a table of 100 columns, and as JSON, which it can also read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.measure import LOGD, Result, Row, Sample, Spread, Target

SATURATED_CPU = 0.95
PERCENTILES = ("p50_us", "p99_us", "p999_us")
HEADINGS = ("median", "p50/99/99.9 ms", "ratio", "range", "target", "met")


def show(console: Console, results: Sequence[Result]) -> None:
    if measured := [result for result in results if result.samples]:
        console.print(_table(measured))
    for result in results:
        for note in notes(result):
            console.print(f"{result.row.name}: {note}", markup=False, highlight=False)
    console.print(targets_met(results))


def targets_met(results: Sequence[Result]) -> str:
    verdicts = [result.met(target) for result in results for target in result.row.targets()]
    judged = [met for met in verdicts if met is not None]
    return f"{sum(judged)} of {len(judged)} targets met"


def notes(result: Result) -> list[str]:
    found = [f"no result for {name}: {why}" for name, why in result.skipped.items()]
    if result.failure:
        found.append(f"FAILED: {result.failure}")
    for name in result.samples:
        if (result.fact(name, "cpu") or 0) > SATURATED_CPU:
            found.append(f"the generator was busy all the time with {name}: it may be faster")
    return found + list(_ceilings(result))


def _ceilings(result: Result) -> Iterator[str]:
    """The ratio of the ceiling to each target."""
    ceiling = result.row.ceiling
    if result.failure or ceiling not in result.samples:
        return
    for target in result.row.targets():
        if target.beside and target.beside in result.samples:
            reach = result.ratio(target.beside, of=ceiling)
            span = f"{times(reach.low)}–{times(reach.high)}"
            yield f"the bare {ceiling} has {times(reach.median)} of {target.beside} ({span})"


def as_json(facts: Mapping[str, object], results: Sequence[Result]) -> dict[str, Any]:
    return {"facts": dict(facts), "rows": [_row_json(result) for result in results]}


def from_json(stored: Mapping[str, Any], rows: Sequence[Row]) -> list[Result]:
    """The results that `as_json` wrote, for rows that still exist."""
    known = {row.name: row for row in rows}
    return [_read_row(known[one["name"]], one) for one in stored["rows"] if one["name"] in known]


def number(value: float, unit: str) -> str:
    divisor, unit = _scale(value, unit)
    return f"{digits(value / divisor)} {unit}"


def digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def _scale(value: float, unit: str) -> tuple[float, str]:
    """The divisor and the name of the unit."""
    match unit:
        case "/s":
            return (1e6, "M/s") if value >= 1e6 else (1e3, "k/s")
        case "MB/s" if value >= 1e3:
            return 1e3, "GB/s"
        case "µs" if value >= 1e3:
            return 1e3, "ms"
        case "s" if value < 1:
            return 1e-3, "ms"
        case _:
            return 1, unit


# -- table --------------------------------------------------------------------------------------


def _table(results: Sequence[Result]) -> Table:
    """A table with a row per result, which has a line per measurement."""
    table = Table(box=box.HORIZONTALS, show_lines=True, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("row", min_width=max(len(result.row.name) for result in results))
    table.add_column("who", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        lines = zip(*(_colored(result, name) for name in result.samples), strict=True)
        about = f"[bold]{result.row.name}[/]\n{result.row.what}"
        table.add_row(about, *("\n".join(line) for line in lines))
    return table


def _colored(result: Result, name: str) -> list[str]:
    *words, met = cells(result, name)
    color = {"yes": "green", "no": "red"}.get(met)
    return [*words, f"[{color}]{met}[/]" if color else met]


def cells(result: Result, name: str) -> list[str]:
    """The cells of a measurement."""
    unit = result.row.unit
    beside = None if name == LOGD else name
    target = result.row.aim(beside)
    figure = result.values(name)
    ratio = result.ratio(beside) if beside else None
    return [
        name,
        number(figure.median, unit),
        _latency(result, name),
        times(ratio.median) if ratio else "",
        f"{times(ratio.low)}–{times(ratio.high)}" if ratio else _span(figure, unit),
        _target(target, unit) if target else "",
        {None: "", True: "yes", False: "no"}[result.met(target)] if target else "",
    ]


def times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else digits(ratio)


def _span(value: Spread, unit: str) -> str:
    """Both extremes, in the unit of the median."""
    divisor, _ = _scale(value.median, unit)
    return f"{digits(value.low / divisor)}–{digits(value.high / divisor)}"


def _latency(result: Result, name: str) -> str:
    found = [result.fact(name, fact) for fact in PERCENTILES]
    return "/".join(_short(value / 1000) for value in found if value is not None)


def _short(value: float) -> str:
    """Two significant digits."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}"


def _target(target: Target, unit: str) -> str:
    sign = "≤" if target.at_most else "≥"
    divisor, unit = (1, "") if target.beside else _scale(target.bound, unit)
    return f"{sign} {target.bound / divisor:g} {unit}".rstrip()


# -- JSON ---------------------------------------------------------------------------------------


def _row_json(result: Result) -> dict[str, Any]:
    row = result.row
    return {
        "name": row.name,
        "what": row.what,
        "unit": row.unit,
        "values": {name: asdict(result.values(name)) for name in result.samples},
        "ratios": {name: asdict(result.ratio(name)) for name in result.samples if name != LOGD},
        "targets": [
            {"beside": one.beside, "target": _target(one, row.unit), "met": result.met(one)}
            for one in row.targets()
        ],
        "notes": notes(result),
        "skipped": result.skipped,
        "failure": result.failure,
        "samples": {
            name: [{"value": sample.value, **sample.facts} for sample in samples]
            for name, samples in result.samples.items()
        },
    }


def _read_row(row: Row, stored: Mapping[str, Any]) -> Result:
    samples = {
        name: [Sample(one["value"], {k: v for k, v in one.items() if k != "value"}) for one in each]
        for name, each in stored["samples"].items()
    }
    return Result(row, samples, dict(stored["skipped"]), stored["failure"])
