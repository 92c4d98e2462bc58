"""A sync fails: nothing more is acknowledged, nothing is retried, the daemon stops and says why.

The kernel may have dropped what it could not write, and a second sync may succeed without it.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.faults.calls import CHANGES, SYNCS, Target, read_calls, targets, trace
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.script import SETTINGS, Script, run_and_stop, side_by_side
from tests.integration.faults.traced_daemon import TracedDaemon

Make = Callable[..., TracedDaemon]
_REASON = re.compile(r"(fdatasync|fsync).*Input/output error")
_SOON_S = 10.0  # a second is promised; a busy machine may need longer
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("strace")]


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_each_sync_of_a_short_life_fails(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str
) -> None:
    """Files and directories, in pushes, rolls and the stop."""
    settings = SETTINGS | {"fsync": fsync}
    model = make_daemon(tmp_path / "model", **settings).start()
    with model.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        assert run_and_stop(model, Script()) == 0
    found = targets(read_calls(tmp_path / "calls", model.data_dir), *SYNCS)
    assert {target.call for target in found} == set(SYNCS)

    def fail(target: Target) -> None:
        number = found.index(target)
        daemon = make_daemon(tmp_path / f"{number}", **settings).start()
        output = tmp_path / f"{number}.calls"
        script = Script()
        injected = target.inject(daemon.data_dir, "error=EIO")
        with daemon.attached(*injected, *trace(*CHANGES), output=output):
            started_s = time.monotonic()
            code = run_and_stop(daemon, script)
            took_s = time.monotonic() - started_s
        if _failed_once(output, daemon, target):
            assert (code, script.refused) == (1, []), (target, daemon.log)
            assert took_s < _SOON_S
            _check_reason(daemon)
            survived[f"failed {target.call}, fsync={fsync}"] += 1
        script.complete(daemon)

    side_by_side(fail, found)
    assert survived[f"failed fdatasync, fsync={fsync}"] > 5
    assert survived[f"failed fsync, fsync={fsync}"] > 3


def test_each_sync_of_a_recovery_fails(
    tmp_path: Path, make_daemon: Make, survived: Counter[str]
) -> None:
    """The start stops, with the reason, and the next one finds all there is."""

    def crashed(name: str) -> tuple[TracedDaemon, Script]:
        daemon, script = make_daemon(tmp_path / name, **SETTINGS).start(), Script()
        assert script.run(daemon)
        daemon.kill()
        with daemon.log_files("app")[-1].open("ab") as log:
            log.write(b"BATCH 5 1 10")
        return daemon, script

    model, _ = crashed("model")
    model.start(*trace(*CHANGES), output=tmp_path / "calls").kill()
    found = targets(read_calls(tmp_path / "calls", model.data_dir), *SYNCS)

    def fail(target: Target) -> None:
        daemon, script = crashed(f"{found.index(target)}")
        output = tmp_path / f"{found.index(target)}.calls"
        injected = target.inject(daemon.data_dir, "error=EIO")
        daemon.launch_traced(*injected, *trace(*CHANGES), output=output)
        assert daemon.wait_ended(_SOON_S) == 1, (target, daemon.log)
        assert _failed_once(output, daemon, target)
        assert _REASON.search(daemon.log), daemon.log
        survived[f"failed {target.call} in a recovery"] += 1
        script.complete(daemon)

    side_by_side(fail, found)


def test_a_start_that_cannot_sync_says_so_in_one_line(tmp_path: Path, make_daemon: Make) -> None:
    daemon = make_daemon(tmp_path / "data")
    with daemon.start().client() as client:
        client.push("app", [b"a"])
    daemon.kill()
    daemon.launch_traced("-e", "inject=fdatasync:error=EIO:when=1")
    assert daemon.wait_ended(_SOON_S) == 1
    _check_reason(daemon)


@pytest.mark.parametrize("fsync", ["interval", "batches", "always"])
@pytest.mark.parametrize("nth", [1, 2, 7])
def test_a_sync_fails_under_load(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], fsync: str, nth: int
) -> None:
    ledger = Ledger(random.Random(nth))
    daemon = make_daemon(tmp_path / "data", fsync=fsync, fsync_interval="10ms", fsync_batches=5)
    with ledger.load(daemon.start()):
        ledger.wait_answers(50)
    log = daemon.log_files("t0")[0].relative_to(daemon.data_dir)
    target = Target("fdatasync", str(log), nth)
    injected = target.inject(daemon.data_dir, "error=EIO")
    with (
        daemon.attached(*injected, *trace(*CHANGES), output=tmp_path / "calls"),
        ledger.load(daemon),
    ):
        assert daemon.wait_ended() == 1
    assert _failed_once(tmp_path / "calls", daemon, target)
    _check_reason(daemon)
    daemon.start()
    ledger.verify(daemon)
    survived[f"failed fdatasync under load, fsync={fsync}"] += 1


def _failed_once(output: Path, daemon: TracedDaemon, target: Target) -> bool:
    """Was the call there, the error in it, and no sync of the same file behind it?"""
    calls = [call for call in read_calls(output, daemon.data_dir) if call.name in SYNCS]
    failures = [call for call in calls if call.failed == "EIO"]
    if not failures:
        return False
    assert [call for call in calls if call.started > failures[0].started] == [], target
    return True


def _check_reason(daemon: TracedDaemon) -> None:
    """One line says what failed and why; a traceback is not a reason."""
    assert _REASON.search(daemon.log), daemon.log
    assert "Traceback" not in daemon.log, daemon.log
