"""The small log, written once; each case works on a copy of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.storage.small_log import State, write_states
from tests.support.byte_sweep import Copy, leave_out_syncs


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, State]:
    return write_states(tmp_path_factory.mktemp("small-log"))


@pytest.fixture
def clean(states: dict[str, State]) -> State:
    return states["clean"]


@pytest.fixture
def killed(states: dict[str, State]) -> State:
    return states["killed"]


@pytest.fixture
def state(states: dict[str, State], name: str) -> State:
    """For tests that run with several: they are parametrized by its name."""
    return states[name]


@pytest.fixture
def topic_dir(tmp_path: Path, state: State) -> Path:
    return Copy(tmp_path / "app", state).directory


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_syncs(monkeypatch)
