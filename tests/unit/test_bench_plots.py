"""What the benchmark leaves in files: a section of a document, pictures, and JSON to go on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import markdown, plots, report
from bench.measure import LOGD, Point, Result, Row, Sample, Spread, Target
from bench.processes import BenchError
from bench.rows import ROWS

FACTS = {"cores": "2", "kernel": "6.1"}
PERCENTILES = {"p50_us": 120.0, "p99_us": 900.0, "p999_us": 12_000.0}


def result(name: str = "some-row", target: Target | None = None, unit: str = "/s") -> Result:
    row = Row(name, "what it does", unit, ROWS[0].open, target, ceiling="echo")
    values = {LOGD: [50e3, 60e3, 40e3], "redis": [100e3, 80e3, 80e3], "echo": [90e3, 90e3, 90e3]}
    samples = {name: [Sample(v, PERCENTILES) for v in each] for name, each in values.items()}
    return Result(row, samples)


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(f"# Title\n\nabove\n\n{markdown.BEGIN}\nold figures\n{markdown.END}\n\nbelow\n")
    return path


def test_a_section_is_replaced_and_the_rest_stays(document: Path) -> None:
    picture = document.parent / "plots" / "targets.png"
    for _ in range(2):  # the second time finds what the first one wrote
        markdown.put(document, FACTS, [result(target=Target(0.4, beside="redis"))], [picture])
    text = document.read_text()
    assert text.startswith("# Title\n\nabove\n\n")
    assert text.endswith(f"{markdown.END}\n\nbelow\n")
    assert "old figures" not in text
    assert text.count("| `some-row` | what it does | logd | 50.0 k/s | 0.12/0.9/12 |") == 1
    assert "| redis | 80.0 k/s | 0.12/0.9/12 | 0.50 | 0.50–0.75 | ≥ 0.4 | yes |" in text
    assert "![targets](plots/targets.png)" in text
    assert "1 of 1 targets met." in text


def test_a_document_without_a_place_for_results_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(BenchError, match="no place for results"):
        markdown.put(page, FACTS, [result()], [])
    assert page.read_text() == "nothing here\n"


def test_what_was_stored_comes_back_as_it_was() -> None:
    known = next(row for row in ROWS if row.name == "small-16x1")
    measured = Result(known, result().samples, {"nats": "no nats-server here"})
    failed = Result(ROWS[0], failure="it broke")
    stored = json.loads(json.dumps(report.as_json(FACTS, [measured, failed])))
    again = report.from_json(stored, ROWS)
    assert again == [measured, failed]
    assert report.from_json(stored, []) == []  # of rows that are gone


def test_a_note_says_what_the_bare_server_reaches() -> None:
    (note,) = report.notes(result(target=Target(1.0, beside="redis")))
    assert note == "the bare echo has 1.12 of redis (0.90–1.12)"
    assert report.notes(result()) == []


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target(1.0, beside="redis"), Spread(0.5, 0.5, 0.75)),
        (Target(100e3), Spread(0.5, 0.4, 0.6)),
        (Target(2.0, at_most=True, beside="redis"), Spread(4.0, 2.0 / 0.75, 4.0)),
    ],
)
def test_a_margin_above_one_is_a_target_met(target: Target, expected: Spread) -> None:
    found = result(target=target)
    share = plots.margin(found, target)
    assert share == expected
    assert (share.median >= 1) == found.met(target)


def test_numbers_on_an_axis_are_plain() -> None:
    assert [plots.plain(v) for v in (0.05, 2, 5e3, 2e6)] == ["0.05", "2", "5k", "2M"]


def test_there_is_a_picture_for_whatever_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra bench")
    results = [
        result("small-16x1", Target(1.0, beside="redis")),
        result("time-push", unit="µs"),
        *(_point(at) for at in (1, 100)),
        Result(ROWS[0], failure="it broke"),
    ]
    made = plots.draw(results, tmp_path / "plots")
    names = ["targets", "push-small", "latency", "followers"]
    assert [path.stem for path in made] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)


def _point(at: float) -> Result:
    row = Row(f"follow-{at:g}", "", "/s", ROWS[0].open, point=Point("followers", "", at, "x"))
    return Result(row, result().samples)


def test_every_plot_of_lines_is_one_that_is_drawn() -> None:
    used = {row.point.plot for row in ROWS if row.point}
    assert used == set(plots.LINES)
