"""A file that retention cannot delete: everything else goes on, and it is tried again in peace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from logd import Client
from tests.integration.faults.calls import CHANGES, read_calls, trace
from tests.integration.faults.reading import wait_until
from tests.integration.faults.victim import Victim

_FAILING = ("-e", "inject=unlink:error=EIO")
pytestmark = pytest.mark.usefixtures("strace")


@pytest.fixture
def victim(tmp_path: Path, make_victim: Callable[..., Victim]) -> Victim:
    """With two partitions too many, as soon as a limit is set."""
    (tmp_path / "logd.toml").touch()
    made = make_victim(tmp_path / "data", partition_bytes=100, config=tmp_path / "logd.toml")
    with made.start().client() as client:
        for _ in range(3):
            client.push("app", [b"x" * 100])
    return made


def test_a_deletion_that_fails_is_tried_again(
    tmp_path: Path, victim: Victim, survived: Counter[str]
) -> None:
    output = tmp_path / "calls"
    with victim.client() as client:
        with victim.attached(*_FAILING, *trace(*CHANGES), output=output):
            _let_two_expire(victim, client)
            for _ in range(20):  # two seconds in which it fails
                client.read("app", "next", 1, wait_ms=100)
            assert client.push("other", [b"a"]) == (0, 1)
        tries = sum(call.name == "unlink" for call in read_calls(output, victim.data_dir))
        assert 0 < tries < 100
        wait_until(client, "app", lambda: len(victim.log_files("app")) == 1)
        assert client.push("app", [b"y" * 100]).offset == 3
    assert victim.stop() == 0
    survived["deletion that fails"] += 1


def test_a_stop_does_not_wait_for_a_deletion_that_fails(victim: Victim) -> None:
    with victim.attached(*_FAILING):
        with victim.client() as client:
            _let_two_expire(victim, client)
        assert victim.stop() == 0, victim.log
    victim.start()
    assert not victim.has_recovered, victim.log
    assert len(victim.log_files("app")) == 1


def _let_two_expire(victim: Victim, client: Client) -> None:
    """Only now: retention looks once a second, and is not to come before the tracer."""
    victim.reload("max-partitions = 1\n")
    wait_until(client, "app", lambda: client.topics("app")[0].first == 2)
