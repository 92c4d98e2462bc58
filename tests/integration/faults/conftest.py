"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.faults.images import why_no_loop_mount, why_no_tmpfs
from tests.integration.faults.traced_daemon import TracedDaemon, why_no_strace
from tests.support.network_links import why_no_namespace

WhyNot = Callable[[str], str]


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., TracedDaemon]]:
    """Daemons that are ended with the test: `make_daemon(tmp_path / "data", fsync="always")`."""
    made: list[TracedDaemon] = []

    def make(data_dir: Path, **settings: object) -> TracedDaemon:
        made.append(TracedDaemon(data_dir, **settings))
        return made[-1]

    try:
        yield make
    finally:
        for daemon in made:
            daemon.__exit__()


@pytest.fixture(scope="session")
def why_not(tmp_path_factory: pytest.TempPathFactory) -> WhyNot:
    """Why this machine does not let us do something; tried once, empty if it does."""
    tries: dict[str, Callable[[], str]] = {
        "strace": why_no_strace,
        "loop_mount": lambda: why_no_loop_mount(tmp_path_factory.mktemp("loop")),
        "namespace": why_no_namespace,
        "tmpfs": lambda: why_no_tmpfs(tmp_path_factory.mktemp("tmpfs")),
    }
    reasons: dict[str, str] = {}

    def why(name: str) -> str:
        if name not in reasons:
            reasons[name] = tries[name]()
        return reasons[name]

    return why


@pytest.fixture
def strace(why_not: WhyNot) -> None:
    """For tests that need it: they are skipped, with the reason, where it does not work."""
    _skip_if(why_not("strace"))


@pytest.fixture
def loop_mount(why_not: WhyNot) -> None:
    _skip_if(why_not("loop_mount"))


@pytest.fixture
def namespace(why_not: WhyNot) -> None:
    _skip_if(why_not("namespace"))


def _skip_if(reason: str) -> None:
    if reason:
        pytest.skip(reason)
