"""What `make run` installs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.daemon import ROOT


def test_make_run_installs_no_test_tools(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    command = ["make", "--dry-run", "run", f"VENV={tmp_path}/venv"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert len(installs) == 1
    assert installs[0].endswith("-e .")  # without an extra
