"""Results as a table for a person and as JSON for a program. The table fits 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.measure import LOGD, Result, Spread, Target

SATURATED_CPU = 0.95


def show(console: Console, results: Sequence[Result]) -> None:
    if measured := [result for result in results if result.samples]:
        console.print(_table(measured))
    for result in results:
        for note in notes(result):
            console.print(f"{result.row.name}: {note}", markup=False, highlight=False)
    verdicts = [met for result in results for met in _verdicts(result) if met is not None]
    console.print(f"{sum(verdicts)} of {len(verdicts)} targets met")


def notes(result: Result) -> list[str]:
    found = [f"no figure beside {name}: {why}" for name, why in result.skipped.items()]
    if result.failure:
        found.append(f"FAILED: {result.failure}")
    for name in result.samples:
        if (result.fact(name, "cpu") or 0) > SATURATED_CPU:
            found.append(
                f"the generator was busy all the time with {name}: that is at least its rate"
            )
    return found


def as_json(facts: Mapping[str, object], results: Sequence[Result]) -> dict[str, Any]:
    return {"facts": dict(facts), "rows": [_row_json(result) for result in results]}


def number(value: float, unit: str) -> str:
    divisor, unit = _scale(value, unit)
    return f"{digits(value / divisor)} {unit}"


def digits(value: float) -> str:
    """Three of them, and never an exponent."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def _scale(value: float, unit: str) -> tuple[float, str]:
    """What to divide by, and the name of what is left."""
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


# -- the table ----------------------------------------------------------------------------------


def _table(results: Sequence[Result]) -> Table:
    """A row of the table for each result, with a line in it for each contestant."""
    table = Table(box=box.HORIZONTALS, show_lines=True, padding=(0, 1))
    table.add_column("row", min_width=max(len(result.row.name) for result in results))
    table.add_column("who", no_wrap=True)
    for heading in ("median", "p50/p99 µs", "logd/it", "least–most", "target", "met"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        lines = zip(*(_cells(result, name) for name in result.samples), strict=True)
        about = f"[bold]{result.row.name}[/]\n{result.row.what}"
        table.add_row(about, *("\n".join(line) for line in lines))
    return table


def _cells(result: Result, name: str) -> list[str]:
    unit = result.row.unit
    beside = None if name == LOGD else name
    target = result.row.aim(beside)
    figure = result.values(name)
    ratio = result.ratio(beside) if beside else None
    return [
        name,
        number(figure.median, unit),
        _latency(result, name),
        _times(ratio.median) if ratio else "",
        f"{_times(ratio.low)}–{_times(ratio.high)}" if ratio else _span(figure, unit),
        _target(target, unit) if target else "",
        _verdict(result.met(target)) if target else "",
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else digits(ratio)


def _span(value: Spread, unit: str) -> str:
    """Both ends in the unit that the median is shown in."""
    divisor, _ = _scale(value.median, unit)
    return f"{digits(value.low / divisor)}–{digits(value.high / divisor)}"


def _latency(result: Result, contestant: str) -> str:
    half, most = (result.fact(contestant, name) for name in ("p50_us", "p99_us"))
    return "" if half is None or most is None else f"{half:.0f}/{most:.0f}"


def _target(target: Target, unit: str) -> str:
    sign = "≤" if target.at_most else "≥"
    divisor, unit = (1, "") if target.beside else _scale(target.bound, unit)
    return f"{sign} {target.bound / divisor:g} {unit}".rstrip()


def _verdicts(result: Result) -> list[bool | None]:
    return [result.met(target) for target in result.row.targets()]


def _verdict(met: bool | None) -> str:
    return {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[met]


# -- JSON ---------------------------------------------------------------------------------------


def _row_json(result: Result) -> dict[str, Any]:
    row = result.row
    return {
        "name": row.name,
        "what": row.what,
        "unit": row.unit,
        "values": {name: _spread_json(result.values(name)) for name in result.samples},
        "ratios": {name: _spread_json(result.ratio(name)) for name in result.peers()},
        "targets": [
            {
                "beside": target.beside,
                "target": _target(target, row.unit),
                "met": result.met(target),
            }
            for target in row.targets()
        ],
        "notes": notes(result),
        "samples": {
            name: [{"value": sample.value, **sample.facts} for sample in samples]
            for name, samples in result.samples.items()
        },
    }


def _spread_json(value: Spread) -> dict[str, float]:
    return {"median": value.median, "low": value.low, "high": value.high}
