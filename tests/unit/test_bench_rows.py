"""Which rows there are, which of them are chosen, and what they are held to."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import sparse_topic
from bench.__main__ import choose
from bench.programs import Follow, Load
from bench.rows import ROWS
from logd.offline import integrity
from logd.storage.recovery import open_topic

# Loosening a target (row, measurement, bound) is a decision of the project, not an edit.
AIMS = {
    ("push-64k", "writev"): 0.9,
    ("push-64k", "sink"): 0.7,
    ("always-64k", "writev+fdatasync"): 0.85,
    ("small-1x1", "redis"): 1.0,
    ("small-16x1", "redis"): 1.1,
    ("small-16x1x16", "redis"): 0.9,
    ("small-16x100x16", "redis"): 1.5,
    ("small-256x1", "redis"): 1.0,
    ("small-16x100", "redis"): 1.3,
    ("always-16x1", "redis"): 1.0,
    ("always-16x100", "redis"): 1.2,
    ("read", "sendfile"): 0.85,
    ("read-random", "redis"): 0.8,
    ("follow-1", "redis"): 1.1,
    ("follow-100", "redis"): 1.5,
    ("follow-1000", "redis"): 1.5,
    ("time-push", "redis"): 1.1,
    ("time-push-always", "redis"): 1.1,
    ("time-follow", "redis"): 1.0,
    ("http-raw", "bare app"): 0.6,
    ("client-writer", "redis-py"): 40,
    ("client-writer", "nats-py"): 100,
    ("client-reader", "redis-py"): 40,
    ("client-reader", "nats-py"): 100,
    ("time-follow", "echo"): 2.0,
    ("age-50g", "1 GB"): 1.1,
}


def test_the_targets_are_those_that_were_set() -> None:
    found = {
        (row.name, target.beside): target.bound
        for row in ROWS
        for target in row.targets()
        if (row.name, target.beside) in AIMS
    }
    assert found == AIMS


def test_every_row_has_a_name_of_its_own() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))


def test_the_document_describes_every_usual_row() -> None:
    page = Path("docs/benchmarks.md")
    text = (Path(__file__).parents[2] / page).read_text()
    described = text[text.index("## Rows") : text.index("## Results")]
    for row in choose(None):
        assert f"`{row.name}`" in described, f"{page} says nothing of {row.name}"


def test_rows_of_the_full_grid_must_be_asked_for() -> None:
    usual, all_rows = choose(None), choose(None, full=True)
    assert all_rows == list(ROWS)
    assert 0 < len(usual) < len(all_rows)
    assert not any(row.full for row in usual)
    assert [row.name for row in choose(["small-256x100"])] == ["small-256x100"]  # named in full
    assert [row.name for row in choose(["small-256*"])] == ["small-256x1"]
    assert [row.name for row in choose(["small-256*", "read"])] == ["small-256x1", "read"]
    assert [row.name for row in choose(["rea"])] == ["read", "read-random"]
    assert choose(["nothing"]) == []


def test_requests_are_as_long_as_the_generator_makes_them() -> None:
    assert Load(message_bytes=100, topic="bench").push_bytes == len("PUSH bench 100\r\n") + 100
    assert Follow("paced0001", 1, 1.0).push_bytes == len("PUSH paced0001 100\r\n") + 100
    assert Load(batch_bytes=4096).with_one_message() == Load(message_bytes=4096)


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_aged_topic_is_one_that_the_daemon_could_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(sparse_topic, "PARTITION_BYTES", 1 << 20)
    topic = tmp_path / "old"
    sparse_topic.make_topic(topic, partitions << 20)
    indexes = {path: path.read_bytes() for path in topic.glob("*.index")}
    opened = open_topic("old", topic)
    assert opened.clean
    assert not opened.damages
    assert len(opened.partitions) == partitions + 1
    assert len(indexes) == partitions
    assert all(path.read_bytes() == made for path, made in indexes.items())  # none was rebuilt
    checked = integrity.check(topic).report
    assert not checked.damages
    assert checked.messages == opened.partitions[-1].first == partitions * 4
