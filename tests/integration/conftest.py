"""The daemon for tests that need one as it comes; `running` is for those that set something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon import ROOT as ROOT
from daemon import Daemon as Daemon
from daemon import running as running


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running(tmp_path) as started:
        yield started
