"""Options and fixtures of the client tests."""

from __future__ import annotations

import os
import secrets

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("tests.support.survivals")


@pytest.fixture(scope="session")
def times() -> int:
    """How many times as much as usual is to be tried."""
    return 10 if os.environ.get("LOGD_LONG") else 1


@pytest.fixture
def seed() -> int:
    """Of this test; shown if it fails. LOGD_SEED gives the same again."""
    value = int(os.environ.get("LOGD_SEED") or secrets.randbits(32))
    print(f"LOGD_SEED={value}")
    return value
