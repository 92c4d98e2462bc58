"""docs/archive.md works when it is pasted: its commands are run, in order, against a daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.archive.commands import HANG_S
from tests.integration.docs.test_docs import fences
from tests.support.daemon import ROOT, Daemon
from tests.support.long_run import LONG

ELSEWHERE = ("pip install", "s3://", "spark-submit")  # what a test cannot paste


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="only in the long run: it starts Spark five times")
def test_the_first_five_minutes(tmp_path: Path, daemon: Daemon) -> None:
    blocks = [fence for fence in fences("docs/archive.md") if fence.language == "sh"]
    pasted = [fence for fence in blocks if not any(word in fence.text for word in ELSEWHERE)]
    assert len(pasted) >= 4
    ran = {fence.section: paste(fence.text, tmp_path, daemon) for fence in pasted}
    first = ran["Getting started"].splitlines()
    assert first[0] == "app 0..999 (1000 messages)"
    assert first[2].split()[:4] == ["app", "1000", "0", "1000"]
    nineties = [str(n) for n in (99, *range(990, 1000))]
    at = first.index("99")
    assert first[at : at + 14] == [*nineties, *nineties[:3]]
    assert first[-2].split() == ["app", "app-again", "1000", "0", "1000"]
    assert first[-1] == "1000"
    assert "there is no archive at" in ran["Errors and exit codes"]
    assert ran["Errors and exit codes"].endswith("\n1\n")


def paste(text: str, directory: Path, daemon: Daemon) -> str:
    """What is printed, errors included, but for notices of progress."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"PATH": path, "LOGD_HOST": daemon.address, "PYTHONPATH": str(ROOT)},
        text=True, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    notices = ("starting Spark", "archiving", "found", "importing")
    lines = done.stdout.splitlines(keepends=True)
    return "".join(
        line for line in lines if not line.startswith(tuple(f"log-cli: {n}" for n in notices))
    )
