"""Which files a forwarder's patterns match, and what is reported about those that match none."""

from __future__ import annotations

from pathlib import Path

import pytest

from logd.forward.paths import Patterns, Unmatched
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
        ((), "app.log", (), "app.log matches no file; nothing to ship yet"),
        ((), "*.log", (), "*.log matches no file; nothing to ship yet"),
        ((), "missing/**/*.log", (), "missing/**/*.log matches no file; nothing to ship yet"),
        (("logs/",), "logs", (), "logs matches a directory only; write 'logs/*' for its files"),
        (("a/", "b/"), "?", (), "? matches directories only; write '?/*' for their files"),
        (("a.gz",), "a.*", (), "a.* matches compressed files only, which are not followed"),
        (("a.log",), "*.log", ("a*",), "*.log matches only files that --exclude leaves out"),
        (("a.log", "b.gz", "c/"), "*", ("a*",), "* matches only files that --exclude leaves out"),
    ],
)
def test_a_pattern_without_a_file_is_reported_once_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], pattern: str,
    excluded: tuple[str, ...], says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    make(tmp_path, *names)
    patterns, unmatched = Patterns([pattern], excluded), Unmatched()
    assert unmatched.news(patterns.expand()) == [says]
    assert unmatched.news(patterns.expand()) == []


def test_a_pattern_that_begins_to_match_is_reported_once(tmp_path: Path) -> None:
    wanted = [str(tmp_path / "*.log"), str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    make(tmp_path, "b.txt")
    patterns, unmatched = Patterns(wanted), Unmatched()
    assert [text.split(" ")[0] for text in unmatched.news(patterns.expand())] == wanted[:2]
    make(tmp_path, "1.log", "2.log")
    assert unmatched.news(patterns.expand()) == [f"{wanted[0]} matches 2 files now"]
    make(tmp_path, "a.txt")
    assert unmatched.news(patterns.expand()) == [f"{wanted[1]} matches 1 file now"]
    for path in (tmp_path / "1.log", tmp_path / "2.log", tmp_path / "b.txt"):
        path.unlink()  # a rotation is no news
        assert unmatched.news(patterns.expand()) == []


def test_a_file_that_two_patterns_match_counts_for_both(tmp_path: Path) -> None:
    make(tmp_path, "a.log")
    patterns = Patterns([str(tmp_path / "*.log"), str(tmp_path / "a*")])
    assert Unmatched().news(patterns.expand()) == []


def test_a_forwarder_says_what_it_waits_for(tmp_path: Path) -> None:
    outbox = Outbox()
    life = Life(tmp_path / "state", outbox, options(tmp_path / "*.log"))
    for _ in range(3):
        life.turn()
    make(tmp_path, "a.log")
    life.settle()
    assert outbox.delivered == [b"line"]
    assert life.said == [
        f"{tmp_path}/*.log matches no file; nothing to ship yet",
        f"{tmp_path}/*.log matches 1 file now",
    ]
