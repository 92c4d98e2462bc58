"""The benchmark itself: a few cheap rows, measured for real, so that it cannot rot unnoticed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench import rabbitmq
from tests.support.daemon import ROOT

ROWS = ("small-1x1", "time-follow", "start-help")
LIMIT_S = 300  # against hanging; it takes a twentieth of that

needs_compiler = pytest.mark.skipif(
    not (shutil.which("cc") or shutil.which("gcc")), reason="the generator is built with a compiler"
)


def bench(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "--dir", str(tmp_path / "data"), *words]
    command += ["--plots", str(tmp_path / "plots")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


@needs_compiler
def test_a_quick_run_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    only = [word for row in ROWS for word in ("--only", row)]
    done = bench(tmp_path, "--quick", *only, "--json", str(figures), "--markdown", str(page))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["name"]: row for row in json.loads(figures.read_text())["rows"]}
    assert set(found) == set(ROWS)
    for row in found.values():
        assert row["failure"] is None
        assert row["values"]["logd"]["median"] > 0
    assert found["time-follow"]["ratios"]["echo"]["median"] > 0
    assert found["time-follow"]["samples"]["logd"][0]["deliveries"] > 100
    assert found["small-1x1"]["samples"]["logd"][0]["requests"] > 100
    assert all(f"| `{row}` |" in page.read_text() for row in ROWS)
    assert list((tmp_path / "data").iterdir()) == []
    again = bench(tmp_path, "--stored", str(figures))  # measures nothing
    assert again.returncode == 0, again.stdout + again.stderr
    assert all(row in again.stdout for row in ROWS)


@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(rabbitmq.missing() is not None, reason=str(rabbitmq.missing()))
def test_rabbitmq_is_started_driven_and_stopped(tmp_path: Path) -> None:
    """Its start alone takes ten seconds."""
    figures = tmp_path / "figures.json"
    done = bench(tmp_path, "--quick", "--only", "small-16x1", "--json", str(figures))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(figures.read_text())["rows"]
    assert row["skipped"].get("rabbitmq") is None
    assert row["samples"]["rabbitmq"][0]["requests"] > 100
    assert list((tmp_path / "data").iterdir()) == []
