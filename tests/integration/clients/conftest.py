"""Fixtures of the client tests."""

from __future__ import annotations

import os
import secrets

import pytest

from tests.support.long_run import LONG


@pytest.fixture(scope="session")
def times() -> int:
    """How many times as much as usual is to be tried."""
    return 50 if LONG else 1


@pytest.fixture
def seed() -> int:
    """Of this test; shown if it fails. LOGD_SEED gives the same again."""
    value = int(os.environ.get("LOGD_SEED") or secrets.randbits(32))
    print(f"LOGD_SEED={value}")
    return value
