"""Counts the faults that logd has survived, and prints them as a table after all tests.

A pytest plugin. Each worker counts its own and reports them when it ends; the table has the sums.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

_SURVIVED = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SURVIVED] = Counter()


@pytest.fixture(scope="session")
def survived(pytestconfig: pytest.Config) -> Counter[str]:
    """Count a fault here once all was well after it: `survived["kill -9"] += 1`."""
    return pytestconfig.stash[_SURVIVED]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker: what is put here arrives at the process that started it."""
    counted = session.config.stash[_SURVIVED]
    handed_over = getattr(session.config, "workeroutput", None)
    if handed_over is not None:
        handed_over["survived"] = dict(counted)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended; one that crashed hands nothing over, and its test has failed."""
    handed_over = getattr(node, "workeroutput", {})
    node.config.stash[_SURVIVED].update(handed_over.get("survived", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    survived = config.stash[_SURVIVED]
    if survived:
        terminalreporter.section("faults survived")
        for fault, count in sorted(survived.items()):
            terminalreporter.line(f"{count:7,}  {fault}")
        terminalreporter.line(f"{survived.total():7,}  in all")
