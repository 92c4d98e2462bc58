"""The daemon for tests that need one as it comes; `running` is for those that set something."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import ROOT as ROOT
from tests.support.daemon import Daemon as Daemon
from tests.support.daemon import running as running


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens, and nobody will while the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all that ask for what must be refused: nothing is ever stored in it."""
    with running(tmp_path_factory.mktemp("empty")) as started:
        yield started


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started
