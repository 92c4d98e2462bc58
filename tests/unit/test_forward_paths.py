"""Which files a forwarder's patterns match, and what is reported about those that match none."""

from __future__ import annotations

from pathlib import Path

import pytest

from logd.forward.paths import PathPatterns, UnmatchedPatterns
from tests.unit.forwarding import Life, Outbox, options


def make(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(b"line\n")


@pytest.mark.parametrize(
    ("names", "pattern", "excluded", "says"),
    [
        ((), "app.log", (), "app.log matches no file yet"),
        ((), "*.log", (), "*.log matches no file yet"),
        ((), "missing/**/*.log", (), "missing/**/*.log matches no file yet"),
        (("logs/",), "logs", (), "logs matches only directories; write 'logs/*' for their files"),
        (("a/", "b/"), "?", (), "? matches only directories; write '?/*' for their files"),
        (("a.gz",), "a.*", (), "a.* matches only compressed files, which are not shipped"),
        (("a.log",), "*.log", ("a*",), "*.log matches only files that --exclude excludes"),
        (("a.log", "b.gz", "c/"), "*", ("a*",), "* matches only files that --exclude excludes"),
    ],
)
def test_a_pattern_without_a_file_is_reported_once_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], pattern: str,
    excluded: tuple[str, ...], says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    make(tmp_path, *names)
    patterns, unmatched = PathPatterns([pattern], excluded), UnmatchedPatterns()
    assert unmatched.changes(patterns.expand()) == [says]
    assert unmatched.changes(patterns.expand()) == []


def test_a_pattern_that_begins_to_match_is_reported_once(tmp_path: Path) -> None:
    wanted = [str(tmp_path / "*.log"), str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    make(tmp_path, "b.txt")
    patterns, unmatched = PathPatterns(wanted), UnmatchedPatterns()
    assert [text.split(" ")[0] for text in unmatched.changes(patterns.expand())] == wanted[:2]
    make(tmp_path, "1.log", "2.log")
    assert unmatched.changes(patterns.expand()) == [f"{wanted[0]} now matches 2 files"]
    make(tmp_path, "a.txt")
    assert unmatched.changes(patterns.expand()) == [f"{wanted[1]} now matches 1 file"]
    for path in (tmp_path / "1.log", tmp_path / "2.log", tmp_path / "b.txt"):
        path.unlink()  # a rotation is no news
        assert unmatched.changes(patterns.expand()) == []


def test_a_file_that_two_patterns_match_counts_for_both(tmp_path: Path) -> None:
    make(tmp_path, "a.log")
    patterns = PathPatterns([str(tmp_path / "*.log"), str(tmp_path / "a*")])
    assert UnmatchedPatterns().changes(patterns.expand()) == []


def test_a_forwarder_says_what_it_waits_for(tmp_path: Path) -> None:
    outbox = Outbox()
    life = Life(tmp_path / "state", outbox, options(tmp_path / "*.log"))
    for _ in range(3):
        life.turn()
    make(tmp_path, "a.log")
    life.settle()
    assert outbox.delivered == [b"line"]
    assert life.said == [
        f"{tmp_path}/*.log matches no file yet",
        f"{tmp_path}/*.log now matches 1 file",
    ]
