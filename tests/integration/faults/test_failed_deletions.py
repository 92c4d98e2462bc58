"""A file that retention cannot delete: everything else goes on, and it is tried again in peace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from logd import Client
from tests.integration.faults.calls import CHANGES, read_calls, trace
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.daemon import wait_until

_FAILING = ("-e", "inject=unlink:error=EIO")
pytestmark = pytest.mark.usefixtures("strace")


@pytest.fixture
def daemon(tmp_path: Path, make_daemon: Callable[..., TracedDaemon]) -> TracedDaemon:
    """With two partitions too many, as soon as a limit is set."""
    (tmp_path / "logd.toml").touch()
    made = make_daemon(tmp_path / "data", partition_bytes=100, config=tmp_path / "logd.toml")
    with made.start().client() as client:
        for _ in range(3):
            client.push("app", [b"x" * 100])
    return made


def test_a_deletion_that_fails_is_tried_again(
    tmp_path: Path, daemon: TracedDaemon, survived: Counter[str]
) -> None:
    output = tmp_path / "calls"
    with daemon.client() as client:
        with daemon.attached(*_FAILING, *trace(*CHANGES), output=output):
            _let_two_expire(daemon, client)
            for _ in range(20):  # two seconds in which it fails
                client.read("app", "next", 1, wait_ms=100)
            assert client.push("other", [b"a"]) == (0, 1)
        tries = sum(call.name == "unlink" for call in read_calls(output, daemon.data_dir))
        assert 0 < tries < 100
        wait_until(lambda: len(daemon.log_files("app")) == 1)
        assert client.push("app", [b"y" * 100]).offset == 3
    assert daemon.stop() == 0
    survived["deletion that fails"] += 1


def test_a_stop_does_not_wait_for_a_deletion_that_fails(daemon: TracedDaemon) -> None:
    with daemon.attached(*_FAILING):
        with daemon.client() as client:
            _let_two_expire(daemon, client)
        assert daemon.stop() == 0, daemon.log
    daemon.start()
    assert not daemon.has_recovered, daemon.log
    assert len(daemon.log_files("app")) == 1


def _let_two_expire(daemon: TracedDaemon, client: Client) -> None:
    """Only now: retention looks once a second, and is not to come before the tracer."""
    daemon.reload("max-partitions = 1\n")
    wait_until(lambda: client.topics("app")[0].first == 2)
