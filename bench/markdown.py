"""Writes results to a document, between two comments. Text between these is replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.measure import LOGD, Result
from bench.processes import BenchError
from bench.report import HEADINGS, cells, notes, targets_met

BEGIN = "<!-- results: written by `python -m bench --markdown` -->"
END = "<!-- end of results -->"


def put(
    document: Path, facts: Mapping[str, str], results: Sequence[Result], plots: Sequence[Path]
) -> None:
    """Replace the text between the comments; create the document if it does not exist."""
    found = document.read_text() if document.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = found.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(
            f"{document} has no place for results: it needs a line {BEGIN} and a line {END}"
        )
    lines = section(facts, results, [os.path.relpath(plot, document.parent) for plot in plots])
    text = "\n".join(lines)
    document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def section(
    facts: Mapping[str, str], results: Sequence[Result], plots: Sequence[str]
) -> Iterator[str]:
    yield from _table(["of the run", ""], [[name, value] for name, value in facts.items()])
    yield ""
    yield f"{targets_met(results)}."
    yield ""
    rows = [words for result in results for words in _rows(result)]
    yield from _table(["row", "what", "who", *HEADINGS], rows)
    said = [f"- `{result.row.name}`: {note}" for result in results for note in notes(result)]
    if said:
        yield from ["", *said]
    for plot in plots:
        yield from ["", f"![{Path(plot).stem}]({plot})"]


def _rows(result: Result) -> Iterator[list[str]]:
    """One per measurement; the first one describes the row."""
    for name in result.samples:
        about = [f"`{result.row.name}`", result.row.what] if name == LOGD else ["", ""]
        yield [*about, *cells(result, name)]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for words in (headings, ["---"] * len(headings), *rows):
        yield "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"
