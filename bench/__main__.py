"""`python -m bench`: builds programs, measures rows, and reports results.

It stops all processes that it starts and removes the data that it writes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench import machine, markdown, peers, plots, rabbitmq, report
from bench.compare import compare_rows
from bench.measure import FULL, LOGD, QUICK, Result, Row, Setting, Sizes, run_row
from bench.processes import ROOT, BenchError
from bench.programs import build
from bench.rows import ROWS
from bench.workloads import BATCH_BYTES, MESSAGE_BYTES

BUILD_DIR = ROOT / "build" / "bench"
PIPED_WIDTH = 100  # without a terminal, rich would fold the table at 80


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure logd.")
    add = parser.add_argument
    only = "a row, or all whose names start with or match this; may be repeated"
    add("--only", metavar="PATTERN", action="append", help=only)
    add("--full", action="store_true", help="include all combinations of pushes")
    add("--list", action="store_true", help="list the rows and exit")
    add("--quick", action="store_true", help="less work, one repetition")
    add("--repeat", type=int, help="repetitions of each row (3; quick: 1)")
    add("--seed", type=int, default=1774, help="seed of the message bytes")
    add("--dir", type=Path, help="directory for data (build/bench)")
    add("--json", type=Path, metavar="FILE", help="write all samples to this file")
    add("--plots", type=Path, metavar="DIR", help="directory for plots (build/bench/plots)")
    add("--markdown", type=Path, metavar="FILE", help="write the results to this document")
    compare = "measure logd alone, against logd of another checkout that has a .venv"
    add("--compare", type=Path, metavar="CHECKOUT", help=compare)
    stored = "show results that --json wrote, without measuring; may be repeated"
    add("--stored", type=Path, metavar="FILE", action="append", help=stored)
    return parser.parse_args(arguments)


def choose(patterns: Sequence[str] | None, *, full: bool = False) -> list[Row]:
    """The rows that are named, or whose names start with or match a pattern."""
    usual = [row for row in ROWS if full or not row.full]
    if patterns is None:
        return usual
    named = {row.name for row in ROWS}.intersection(patterns)
    parts = [pattern for pattern in patterns if pattern not in named]
    named |= {row.name for row in usual if any(_fits(row.name, part) for part in parts)}
    return [row for row in ROWS if row.name in named]


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern) or fnmatchcase(name, pattern)


def sizes_for(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL
    return sizes if options.repeat is None else replace(sizes, repeat=max(1, options.repeat))


def facts_of(setting: Setting) -> dict[str, str]:
    sizes = setting.sizes
    return (
        machine.describe(setting.directory)
        | peers.versions()
        | {"rabbitmq-server": rabbitmq.version()}
        | {
            "message": f"{MESSAGE_BYTES} B with its line end",
            "batch": f"{BATCH_BYTES // 1024} KB",
            "pushed": f"{sizes.push_bytes >> 20} MB",
            "topic read": f"{sizes.topic_bytes >> 20} MB",
            "client messages": f"{sizes.client_messages}, of others {sizes.peer_messages}",
            "small rows": f"{sizes.seconds:g} s after {sizes.warmup_s:g} s of warming up",
            "repetitions": f"{sizes.repeat}, in turn",
            "fsync": "interval (redis everysec, nats and rabbitmq by default), "
            "in rows named always: always",
            "seed": str(setting.seed),
        }
    )


def check_room(setting: Setting) -> None:
    needed = 3 * max(setting.sizes.push_bytes, setting.sizes.topic_bytes)
    if shutil.disk_usage(setting.directory).free < needed:
        raise BenchError(f"{setting.directory} needs {needed >> 20} MB free")


def measure_all(
    rows: Sequence[Row], setting: Setting, console: Console, save: Callable[[list[Result]], None]
) -> list[Result]:
    """`save` is called after each row, so that a later failure does not lose results."""
    results: list[Result] = []
    for row in rows:
        start = time.monotonic()
        result = run_row(row, setting)
        results.append(result)
        values = [
            f"{name} {report.number(result.values(name).median, row.unit)}"
            for name in result.samples
        ]
        said = result.failure or ", ".join(values)
        console.print(f"{row.name}: {said} ({time.monotonic() - start:.0f} s)", markup=False)
        save(results)
    return results


def bench(options: argparse.Namespace, console: Console) -> tuple[dict[str, str], list[Result]]:
    base: Path = options.dir or BUILD_DIR
    base.mkdir(parents=True, exist_ok=True)
    programs = build(BUILD_DIR, options.seed)
    with TemporaryDirectory(prefix="data-", dir=base) as name:
        setting = Setting(programs, sizes_for(options), Path(name).resolve(), options.seed)
        check_room(setting)
        facts = facts_of(setting)
        for fact, value in facts.items():
            console.print(f"{fact}: {value}", markup=False, highlight=False)
        if facts["filesystem"] == "tmpfs":
            console.print("the data is on tmpfs: results of writes and syncs are meaningless")
        rows = choose(options.only, full=options.full)
        if options.compare:
            if compare_rows(rows, setting, options.compare, console):
                raise BenchError("some rows could not be compared")
            return facts, []
        results = measure_all(rows, setting, console, partial(save_json, options.json, facts))
    return facts, results


def save_json(path: Path | None, facts: dict[str, str], results: list[Result]) -> None:
    if path:
        path.write_text(json.dumps(report.as_json(facts, results), indent=2) + "\n")


def stored(paths: Sequence[Path]) -> tuple[dict[str, str], list[Result]]:
    """The results of earlier runs; the last one of each row."""
    facts: dict[str, str] = {}
    results: dict[str, Result] = {}
    for path in paths:
        found = json.loads(path.read_text())
        facts |= found["facts"]
        results |= {result.row.name: result for result in report.from_json(found, ROWS)}
    return facts, list(results.values())


def keep(
    options: argparse.Namespace, console: Console, facts: dict[str, str], results: list[Result]
) -> None:
    """Write JSON, plots and Markdown."""
    save_json(options.json, facts, results)
    drawn: list[Path] = []
    directory = options.plots or BUILD_DIR / "plots"
    if reason := plots.missing():
        console.print(reason)
    else:
        drawn = plots.draw(results, directory)
        console.print(f"{len(drawn)} plots in {os.path.relpath(directory)}", highlight=False)
    if options.markdown:
        markdown.put(options.markdown, facts, results, drawn)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    rows = choose(options.only, full=options.full)
    if options.list or not rows:
        for row in rows or ROWS:
            console.print(f"{row.name:17} {row.what}", markup=False, highlight=False)
        return 0 if rows else 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    try:
        facts, results = stored(options.stored) if options.stored else bench(options, console)
        if not options.compare:
            report.show(console, results)
            keep(options, console, facts, results)
    except KeyboardInterrupt:
        return 130
    except BenchError as error:
        console.print(str(error), markup=False)
        return 1
    return 1 if any(result.failure or LOGD not in result.samples for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
