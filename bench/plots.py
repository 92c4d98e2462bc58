"""Draws plots of results. Matplotlib comes with the extra `bench`; without it there are no plots.

Bars are medians, thin lines reach from the lowest to the highest value. A measurement has the same
color in all plots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import report
from bench.measure import LOGD, Result, Spread, Target

COLORS = {
    LOGD: "#1f5fa8", "redis": "#c4382d", "nats": "#3a9d5d", "rabbitmq": "#e08a1e",
    "echo": "#8c8c8c", "fan": "#8c8c8c", "sink": "#8c8c8c", "sendfile": "#4d4d4d",
    "writev": "#4d4d4d", "writev+fdatasync": "#4d4d4d", "writev+sync": "#4d4d4d",
}  # fmt: skip
OTHERS = ("#7b5ea7", "#b5a642", "#5bb5c5", "#a0522d", "#d98cb3")
DOTS_PER_INCH = 110
FAR = 20  # from this ratio of values on, an axis is logarithmic
Figures = dict[str, Any]

BARS = {
    "push-small": (
        "Pushes of 100 B per second",
        ("small-", "always-16x", "always-1x", "always-256x"),
    ),
    "push-large": ("Batches of 4 and 64 KB: MB per second", ("push-", "always-64k", "always-4k")),
    "clients": ("Python clients: messages per second", ("client-",)),
}
LINES = {
    "followers": ("Deliveries per second, by number of followers", "deliveries/s"),
    "start": ("Start time, by size of the log", "seconds"),
    "memory-connections": ("Resident memory, by number of connections", "MB"),
    "memory-topics": ("Resident memory, by number of topics", "MB"),
    "age": ("Cost of a 4 KB batch, by size of the log", "µs per batch"),
}


def missing() -> str | None:
    if find_spec("matplotlib") is None:
        return "no plots: the Python package matplotlib is not installed; `make bench` installs it"
    return None


def draw(results: Sequence[Result], directory: Path) -> list[Path]:
    """Draw the plots for which there are results; returns their files."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    good = [r for r in results if not r.failure and LOGD in r.samples]
    made = []
    for name, figure in _figures(pyplot, good):
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=DOTS_PER_INCH, bbox_inches="tight")
        pyplot.close(figure)
        made.append(path)
    return made


def _figures(pyplot: Any, results: Sequence[Result]) -> Iterator[tuple[str, Any]]:
    if judged := [(r, t) for r in results for t in r.row.targets() if r.met(t) is not None]:
        yield "targets", _targets(pyplot, judged)
    for name, (title, starts) in BARS.items():
        if rows := [r for r in results if r.row.name.startswith(starts) and r.row.unit != "µs"]:
            yield name, _bars(pyplot, title, rows)
    if timed := [r for r in results if r.row.name.startswith("time-")]:
        yield "latency", _latencies(pyplot, timed)
    for name, (title, unit) in LINES.items():
        points = [r for r in results if r.row.point and r.row.point.plot == name]
        if len(points) > 1:
            yield name, _lines(pyplot, title, unit, points)


def margin(result: Result, target: Target) -> Spread:
    """How far a target is exceeded: 1 is just met, more is better."""
    value = result.ratio(target.beside) if target.beside else result.values(LOGD)
    if target.at_most:
        return Spread(*(target.bound / v for v in (value.median, value.high, value.low)))
    return Spread(*(v / target.bound for v in (value.median, value.low, value.high)))


def _targets(pyplot: Any, judged: Sequence[tuple[Result, Target]]) -> Any:
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(judged)))
    for y, (result, target) in enumerate(reversed(judged)):
        share = margin(result, target)
        color = "#3a9d5d" if share.median >= 1 else "#c4382d"
        axes.plot([share.low, share.high], [y, y], color=color, linewidth=1.2)
        axes.plot([share.median], [y], "o", color=color)
    axes.set_yticks(range(len(judged)), [_aim(r, t) for r, t in reversed(judged)], fontsize=8)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, log=True)
    axes.grid(axis="x", which="both", alpha=0.25)
    axes.set_xlabel("share of the target, which is met to the right of the line")
    axes.set_title("Results in relation to the targets")
    return figure


def _aim(result: Result, target: Target) -> str:
    sign = "≤" if target.at_most else "≥"
    bound = f"{target.bound:g} × {target.beside}"
    if target.beside is None:
        bound = report.number(target.bound, result.row.unit)
    return f"{result.row.name}   {sign} {bound}"


def _bars(pyplot: Any, title: str, results: Sequence[Result]) -> Any:
    """A horizontal group per row; dots if the axis is logarithmic."""
    figure, axes = _row_axes(pyplot, title, results)
    values = [r.values(n).median for r in results for n in r.samples]
    spread_out = far_apart(values)
    for y, result, name, style in _rows(results):
        value = result.values(name)
        if spread_out:
            axes.plot([value.median], [y], "o", markersize=8, **style)
        else:
            axes.barh(y, value.median, height=0.8, **style)
        axes.plot([value.low, value.high], [y, y], color="black", linewidth=0.8)
        said = f"  {report.number(value.median, result.row.unit)}"
        axes.text(value.high, y, said, va="center", fontsize=7)
    _scale(axes.xaxis, values, axes.set_xscale)
    axes.margins(x=0.12)
    _legend(axes, results)
    return figure


def _rows(results: Sequence[Result]) -> Iterator[tuple[float, Result, str, Figures]]:
    """The position, from the bottom up, and the style of each measurement; labelled once."""
    colors, shown = Palette(), set[str]()
    for result, heights in zip(reversed(results), _heights(results), strict=True):
        for y, name in zip(heights, reversed(result.samples), strict=True):
            style: Figures = {"color": colors.of(name)}
            if name not in shown:
                style["label"] = name
            shown.add(name)
            yield y, result, name, style


def _heights(results: Sequence[Result]) -> Iterator[list[float]]:
    y = 0.0
    for result in reversed(results):
        yield [y + i for i in range(len(result.samples))]
        y += len(result.samples) + 0.8


def _row_axes(pyplot: Any, title: str, results: Sequence[Result]) -> tuple[Any, Any]:
    height = sum(len(r.samples) + 1 for r in results)
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.24 * height))
    axes.set_title(title)
    axes.grid(axis="x", which="both", alpha=0.25)
    middles = [sum(heights) / len(heights) for heights in _heights(results)]
    axes.set_yticks(middles, [result.row.name for result in reversed(results)])
    for heights in _heights(results):
        axes.axhspan(heights[0] - 0.6, heights[-1] + 0.6, color="#f3f3f3", zorder=0)
    axes.margins(y=0.02)
    return figure, axes


def _latencies(pyplot: Any, results: Sequence[Result]) -> Any:
    """p50, p99 and p99.9: one line per measurement and row."""
    title = "Latency of a push, and of its delivery to a follower"
    figure, axes = _row_axes(pyplot, title, results)
    for y, result, name, style in _rows(results):
        found = [result.fact(name, fact) for fact in report.PERCENTILES]
        values = [v / 1000 for v in found if v is not None]
        axes.plot(values, [y] * len(values), linewidth=2, **style)
        for value, mark in zip(values, ("o", "|", ">"), strict=False):
            axes.plot([value], [y], mark, color=style["color"], markersize=7)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, log=True)
    axes.set_xlabel("ms: p50 ●, p99 |, p99.9 ▶")
    _legend(axes, results)
    return figure


def _lines(pyplot: Any, title: str, unit: str, results: Sequence[Result]) -> Any:
    figure, axes = pyplot.subplots(figsize=(7.5, 4.2))
    colors, values = Palette(), []
    for label, points in _series(results).items():
        points.sort(key=lambda point: point[0])
        x = [at for at, _ in points]
        middle = [value.median for _, value in points]
        values += middle
        axes.plot(x, middle, "o-", color=colors.of(label), label=label)
        axes.fill_between(
            x, [v.low for _, v in points], [v.high for _, v in points],
            color=colors.of(label), alpha=0.15,
        )  # fmt: skip
    at = [r.row.point.at for r in results if r.row.point]
    _scale(axes.xaxis, at, axes.set_xscale)
    _scale(axes.yaxis, values, axes.set_yscale)
    if not far_apart(values):
        axes.set_ylim(bottom=0)
    axes.set_xlabel(results[0].row.point.x_axis if results[0].row.point else "")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.25)
    axes.set_title(title)
    axes.legend(fontsize=8)
    return figure


def _series(results: Iterable[Result]) -> dict[str, list[tuple[float, Spread]]]:
    """The points of each line, one line per measurement and kind of row."""
    series: dict[str, list[tuple[float, Spread]]] = {}
    for result in results:
        point = result.row.point
        assert point is not None
        for name in result.samples:
            label = point.line if name == LOGD and point.line else name
            series.setdefault(label, []).append((point.at, result.values(name)))
    return series


class Palette:
    """Known names have a fixed color; others get one in turn."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, name: str) -> str:
        if name in COLORS:
            return COLORS[name]
        return self._given.setdefault(name, OTHERS[len(self._given) % len(OTHERS)])


def far_apart(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > FAR * min(values)


def _scale(axis: Any, values: Sequence[float], set_scale: Any) -> None:
    """Logarithmic if the values differ by more than FAR."""
    if log := far_apart(values):
        set_scale("log")
    _plain_ticks(axis, log=log)


def _plain_ticks(axis: Any, *, log: bool) -> None:
    """100k and 0.5, not 10⁵."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if log:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def plain(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _legend(axes: Any, results: Sequence[Result]) -> None:
    """In the order of the rows, which are drawn from the bottom up."""
    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    names = [name for name in dict.fromkeys(n for r in results for n in r.samples) if name in drawn]
    axes.legend(
        [drawn[name] for name in names], names,
        loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8, borderaxespad=0,
    )  # fmt: skip
