"""Options and fixtures of the client tests, and the table of what was survived."""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # for its daemon

_SURVIVED = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash.setdefault(_SURVIVED, Counter())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    survived = config.stash.get(_SURVIVED, Counter())
    if survived:
        terminalreporter.section("faults that clients survived")
        for fault, count in sorted(survived.items()):
            terminalreporter.line(f"{count:7,}  {fault}")
        terminalreporter.line(f"{survived.total():7,}  in all")


@pytest.fixture(scope="session")
def times() -> int:
    """How many times as much as usual is to be tried."""
    return 10 if os.environ.get("LOGD_LONG") else 1


@pytest.fixture(scope="session")
def survived(pytestconfig: pytest.Config) -> Counter[str]:
    """Count faults here once all was well after them."""
    return pytestconfig.stash[_SURVIVED]


@pytest.fixture
def seed() -> int:
    """Of this test; shown if it fails. LOGD_SEED gives the same again."""
    value = int(os.environ.get("LOGD_SEED") or secrets.randbits(32))
    print(f"LOGD_SEED={value}")
    return value
