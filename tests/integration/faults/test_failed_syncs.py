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
from tests.integration.faults.victim import Victim

Make = Callable[..., Victim]
_REASON = re.compile(r"(fdatasync|fsync).*Input/output error")
_SOON_S = 10.0  # a second is promised; a busy machine may need longer
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("strace")]


@pytest.mark.parametrize("fsync", ["always", "never"])
def test_each_sync_of_a_short_life_fails(
    tmp_path: Path, make_victim: Make, survived: Counter[str], fsync: str
) -> None:
    """Files and directories, in pushes, rolls and the stop."""
    settings = SETTINGS | {"fsync": fsync}
    model = make_victim(tmp_path / "model", **settings).start()
    with model.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        assert run_and_stop(model, Script()) == 0
    found = targets(read_calls(tmp_path / "calls", model.data_dir), *SYNCS)
    assert {target.call for target in found} == set(SYNCS)

    def fail(target: Target) -> None:
        number = found.index(target)
        victim = make_victim(tmp_path / f"{number}", **settings).start()
        output = tmp_path / f"{number}.calls"
        script = Script()
        injected = target.inject(victim.data_dir, "error=EIO")
        with victim.attached(*injected, *trace(*CHANGES), output=output):
            started_s = time.monotonic()
            code = run_and_stop(victim, script)
            took_s = time.monotonic() - started_s
        if _failed_once(output, victim, target):
            assert (code, script.refused) == (1, []), (target, victim.log)
            assert took_s < _SOON_S
            _check_reason(victim)
            survived[f"failed {target.call}, fsync={fsync}"] += 1
        script.complete(victim)

    side_by_side(fail, found)
    assert survived[f"failed fdatasync, fsync={fsync}"] > 5
    assert survived[f"failed fsync, fsync={fsync}"] > 3


def test_each_sync_of_a_recovery_fails(
    tmp_path: Path, make_victim: Make, survived: Counter[str]
) -> None:
    """The start stops, with the reason, and the next one finds all there is."""

    def crashed(name: str) -> tuple[Victim, Script]:
        victim, script = make_victim(tmp_path / name, **SETTINGS).start(), Script()
        assert script.run(victim)
        victim.kill()
        with victim.log_files("app")[-1].open("ab") as log:
            log.write(b"BATCH 5 1 10")
        return victim, script

    model, _ = crashed("model")
    model.start(*trace(*CHANGES), output=tmp_path / "calls").kill()
    found = targets(read_calls(tmp_path / "calls", model.data_dir), *SYNCS)

    def fail(target: Target) -> None:
        victim, script = crashed(f"{found.index(target)}")
        output = tmp_path / f"{found.index(target)}.calls"
        injected = target.inject(victim.data_dir, "error=EIO")
        victim.launch(*injected, *trace(*CHANGES), output=output)
        assert victim.wait_ended(_SOON_S) == 1, (target, victim.log)
        assert _failed_once(output, victim, target)
        assert _REASON.search(victim.log), victim.log
        survived[f"failed {target.call} in a recovery"] += 1
        script.complete(victim)

    side_by_side(fail, found)


def test_a_start_that_cannot_sync_says_so_in_one_line(tmp_path: Path, make_victim: Make) -> None:
    victim = make_victim(tmp_path / "data")
    with victim.start().client() as client:
        client.push("app", [b"a"])
    victim.kill()
    victim.launch("-e", "inject=fdatasync:error=EIO:when=1")
    assert victim.wait_ended(_SOON_S) == 1
    _check_reason(victim)


@pytest.mark.parametrize("fsync", ["interval", "batches", "always"])
@pytest.mark.parametrize("nth", [1, 2, 7])
def test_a_sync_fails_under_load(
    tmp_path: Path, make_victim: Make, survived: Counter[str], fsync: str, nth: int
) -> None:
    ledger = Ledger(random.Random(nth))
    victim = make_victim(tmp_path / "data", fsync=fsync, fsync_interval="10ms", fsync_batches=5)
    with ledger.load(victim.start()):
        ledger.wait_answers(50)
    log = victim.log_files("t0")[0].relative_to(victim.data_dir)
    target = Target("fdatasync", str(log), nth)
    injected = target.inject(victim.data_dir, "error=EIO")
    with (
        victim.attached(*injected, *trace(*CHANGES), output=tmp_path / "calls"),
        ledger.load(victim),
    ):
        assert victim.wait_ended() == 1
    assert _failed_once(tmp_path / "calls", victim, target)
    _check_reason(victim)
    victim.start()
    ledger.verify(victim)
    survived[f"failed fdatasync under load, fsync={fsync}"] += 1


def _failed_once(output: Path, victim: Victim, target: Target) -> bool:
    """Was the call there, the error in it, and no sync of the same file behind it?"""
    calls = [call for call in read_calls(output, victim.data_dir) if call.name in SYNCS]
    failures = [call for call in calls if call.failed == "EIO"]
    if not failures:
        return False
    assert [call for call in calls if call.started > failures[0].started] == [], target
    return True


def _check_reason(victim: Victim) -> None:
    """One line says what failed and why; a traceback is not a reason."""
    assert _REASON.search(victim.log), victim.log
    assert "Traceback" not in victim.log, victim.log
