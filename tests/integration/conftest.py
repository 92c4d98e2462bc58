"""The daemon for tests that need one as it comes; `running` is for those that set something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import listener
from tests.support.daemon import ROOT as ROOT
from tests.support.daemon import Daemon as Daemon
from tests.support.daemon import running as running


@pytest.fixture
def nobody() -> Iterator[str]:
    with listener.nobody() as address:
        yield address


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all that ask for what must be refused: nothing is ever stored in it."""
    with running(tmp_path_factory.mktemp("empty")) as started:
        yield started


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started
