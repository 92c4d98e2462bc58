"""What systemd's own tools say about the units, which needs no systemd that runs."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.operations.manager import run
from tests.integration.operations.service import settings
from tests.support.daemon import ROOT

UNITS = ROOT / "contrib" / "systemd"
EXPOSED = 2.0

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="there is no systemd-analyze here; `make operations-packages` does it",
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The units with the command of this environment: a command must exist to be verified."""
    for unit in UNITS.glob("logd.s*"):
        if unit.suffix in (".service", ".socket"):
            ours = Path(sys.executable).parent / "logd"
            (tmp_path / unit.name).write_text(
                unit.read_text().replace("/opt/logd/bin/logd", str(ours))
            )
    return tmp_path


def test_verify_finds_nothing(here: Path) -> None:
    done = run("systemd-analyze", "verify", here / "logd.service", here / "logd.socket")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_verify_would_find_something(here: Path) -> None:
    unit = here / "logd.service"
    unit.write_text(unit.read_text().replace("Type=notify", "Type=telepathic"))
    assert "telepathic" in run("systemd-analyze", "verify", unit).stderr


def test_little_is_exposed() -> None:
    done = run("systemd-analyze", "security", "--offline=true", UNITS / "logd.service")
    level = re.search(r"Overall exposure level for logd\.service: ([0-9.]+)", done.stdout)
    assert level, done
    assert float(level[1]) <= EXPOSED


def test_the_unit_says_what_the_daemon_does() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert float(unit["WatchdogSec"][0]) > 5
    assert float(unit["TimeoutStopSec"][0]) > 10, "longer than the setting stop-timeout"
    assert unit["StateDirectory"] == ["logd"]
    assert "--data-dir /var/lib/logd" in unit["ExecStart"][0]
