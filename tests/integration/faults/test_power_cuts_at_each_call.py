"""The power is cut in front of each single system call: of a short life, and of a recovery.

A kill in front of the call, and before the kernel writes anything by itself, the file system is
shut down: what was not synced by then is gone. Whatever ext4 keeps without being asked, this cannot
see; the order of the calls is tested in test_call_order.py.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.integration.faults.calls import CHANGES, Target, read_calls, targets, trace
from tests.integration.faults.images import Ext4
from tests.integration.faults.script import SETTINGS, Script, run_and_stop, side_by_side
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.support.long_run import LONG

Make = Callable[..., TracedDaemon]
_MOUNTS = {"default": "", "writeback": "data=writeback,nodelalloc"}
_DISKS = 3  # side by side
_TRIES = 3  # strace counts per thread, and which thread does the nth call may differ
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("strace", "loop_mount")]


@pytest.mark.parametrize("mount", _MOUNTS if LONG else ["writeback"])  # which loses more
def test_power_cut_in_a_short_life(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], mount: str
) -> None:
    """With fsync=always nothing that was acknowledged is lost."""
    settings = SETTINGS | {"fsync": "always"}
    model = make_daemon(tmp_path / "model", **settings).start()
    with model.attached(*trace(*CHANGES), output=tmp_path / "calls"):
        assert run_and_stop(model, Script()) == 0
    found = targets(read_calls(tmp_path / "calls", model.data_dir))
    found = found if LONG else found[1::2]

    with _disks(tmp_path, mount) as free:

        def cut(target: Target) -> bool:
            return any(cut_once(target) for _ in range(_TRIES))

        def cut_once(target: Target) -> bool:
            with _taken(free) as disk:
                daemon = make_daemon(disk.place / f"{found.index(target)}", **settings).start()
                script = Script()
                with daemon.attached(*target.inject(daemon.data_dir, "signal=SIGKILL")):
                    was_hit = run_and_stop(daemon, script) == -signal.SIGKILL
                disk.crash(daemon)
                script.complete(daemon)
                shutil.rmtree(daemon.data_dir)
            survived[f"power cut in front of each call of a short life, mounted {mount}"] += was_hit
            return was_hit

        assert sum(side_by_side(cut, found, _DISKS)) > 0.9 * len(found)


@pytest.mark.parametrize("mount", _MOUNTS)
def test_power_cut_in_a_recovery(
    tmp_path: Path, make_daemon: Make, survived: Counter[str], mount: str
) -> None:
    """The recovery after that ends in the same log, and the torn tail is still somewhere."""
    torn = b"BATCH 5 1 10 half a header"
    before = make_daemon(tmp_path / "before", **SETTINGS).start()
    assert Script().run(before)
    before.kill()
    with before.log_files("app")[-1].open("ab") as log:
        log.write(torn)
    model = make_daemon(tmp_path / "model", **SETTINGS)
    shutil.copytree(before.data_dir, model.data_dir)
    model.start(*trace(*CHANGES), output=tmp_path / "calls").kill()
    found = targets(read_calls(tmp_path / "calls", model.data_dir))
    wanted = model.stored("app")
    assert wanted + torn == before.stored("app")

    with _disks(tmp_path, mount) as free:

        def cut(target: Target) -> None:
            with _taken(free) as disk:
                daemon = make_daemon(disk.place / f"{found.index(target)}", **SETTINGS)
                shutil.copytree(before.data_dir, daemon.data_dir)
                disk.unmount()
                disk.mount()
                daemon.launch_traced(*target.inject(daemon.data_dir, "signal=SIGKILL"))
                daemon.wait_ended()
                disk.crash(daemon)
                daemon.start().kill()
                assert daemon.stored("app") == wanted, target
                copies = daemon.topic_dir("app").glob("quarantine/*")
                assert [path.read_bytes() for path in copies] == [torn], target
                shutil.rmtree(daemon.data_dir)
            survived[f"power cut in front of each call of a recovery, mounted {mount}"] += 1

        side_by_side(cut, found, _DISKS)


@contextmanager
def _disks(tmp_path: Path, mount: str) -> Iterator[SimpleQueue[Ext4]]:
    free: SimpleQueue[Ext4] = SimpleQueue()
    with ExitStack() as stack:
        for number in range(_DISKS):
            free.put(stack.enter_context(Ext4(tmp_path / f"disk{number}", _MOUNTS[mount])))
        yield free


@contextmanager
def _taken(free: SimpleQueue[Ext4]) -> Iterator[Ext4]:
    disk = free.get()
    try:
        yield disk
    finally:
        free.put(disk)
