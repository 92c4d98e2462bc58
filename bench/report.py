"""Results as tables for a person and as JSON for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import LOGD, Result, Row, Spread

SATURATED_CPU = 0.95


def show(console: Console, results: Sequence[Result]) -> None:
    beside = [result for result in results if result.peers()]
    alone = [result for result in results if result.samples and not result.peers()]
    if beside:
        console.print(_beside_table(beside))
    if alone:
        console.print(_alone_table(alone))
    for result in results:
        for note in notes(result):
            console.print(f"{result.row.name}: {note}", markup=False, highlight=False)
    verdicts = [verdict for result in results if (verdict := result.met()) is not None]
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
    match unit:
        case "/s" if value >= 1e6:
            return f"{value / 1e6:.2f} M/s"
        case "/s":
            return f"{value / 1e3:.1f} k/s"
        case "MB/s":
            return f"{value:.0f} MB/s"
        case _:
            return f"{value:.3g} {unit}"


# -- tables -------------------------------------------------------------------------------------


def _beside_table(results: Sequence[Result]) -> Table:
    table = Table(title="logd beside others, same run", title_justify="left")
    for heading in ("row", "what"):
        table.add_column(heading)
    for heading in ("logd", "beside", "ratio", "least–most", "p50/p99 µs", "its p50/p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("target", "met"):
        table.add_column(heading, justify="right")
    for result in results:
        for order, peer in enumerate(result.peers()):
            table.add_row(*_beside_cells(result, peer, first=order == 0))
        table.add_section()
    return table


def _beside_cells(result: Result, peer: str, *, first: bool) -> list[str]:
    row, ratio = result.row, result.ratio(peer)
    ours, theirs = result.values(LOGD).median, result.values(peer).median
    aimed = row.target is not None and row.target.beside == peer
    return [
        row.name if first else "",
        row.what if first else "",
        number(ours, row.unit) if first else "",
        f"{peer} {number(theirs, row.unit)}",
        f"{ratio.median:.2f}",
        f"{ratio.low:.2f}–{ratio.high:.2f}",
        _latency(result, LOGD) if first else "",
        _latency(result, peer),
        _target(row) if aimed else "",
        _verdict(result) if aimed else "",
    ]


def _alone_table(results: Sequence[Result]) -> Table:
    table = Table(title="on its own", title_justify="left")
    for heading in ("row", "what"):
        table.add_column(heading)
    for heading in ("median", "least–most", "target", "met"):
        table.add_column(heading, justify="right")
    for result in results:
        row, value = result.row, result.values(LOGD)
        least_most = f"{value.low:.3g}–{value.high:.3g}"
        cells = [row.name, row.what, number(value.median, row.unit), least_most]
        absolute = row.target is not None and row.target.beside is None
        table.add_row(*cells, _target(row) if absolute else "", _verdict(result))
    return table


def _latency(result: Result, contestant: str) -> str:
    half, most = (result.fact(contestant, name) for name in ("p50_us", "p99_us"))
    return "" if half is None or most is None else f"{half:.0f}/{most:.0f}"


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    sign = "≤" if row.target.at_most else "≥"
    unit = "" if row.target.beside else f" {row.unit}"
    return f"{sign} {row.target.bound:g}{unit}"


def _verdict(result: Result) -> str:
    match result.met():
        case None:
            return ""
        case True:
            return "[green]yes[/]"
        case False:
            return "[red]no[/]"


# -- JSON ---------------------------------------------------------------------------------------


def _row_json(result: Result) -> dict[str, Any]:
    row = result.row
    return {
        "name": row.name,
        "what": row.what,
        "unit": row.unit,
        "values": {name: _spread_json(result.values(name)) for name in result.samples},
        "ratios": {name: _spread_json(result.ratio(name)) for name in result.peers()},
        "target": _target(row),
        "beside": row.target.beside if row.target else None,
        "met": result.met(),
        "notes": notes(result),
        "samples": {
            name: [{"value": sample.value, **sample.facts} for sample in samples]
            for name, samples in result.samples.items()
        },
    }


def _spread_json(value: Spread) -> dict[str, float]:
    return {"median": value.median, "low": value.low, "high": value.high}
