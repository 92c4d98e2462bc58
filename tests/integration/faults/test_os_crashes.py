"""Crashes of the operating system: what each mode promises is there, and only an end is missing."""

from __future__ import annotations

import math
import random
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from logd import Client
from tests.integration.faults.images import Ext4
from tests.integration.faults.ledger import Ledger
from tests.integration.faults.reading import read_all
from tests.integration.faults.traced_daemon import TracedDaemon
from tests.integration.faults.writers import ID, SUM
from tests.support.daemon import messages, wait_until
from tests.support.long_run import LONG

CRASHES = 125 if LONG else 3  # in each mode and mount
_MODES = ("never", "interval", "batches", "always")
_MOUNTS = {"default": "", "writeback": "data=writeback,nodelalloc"}
_CRASHES_OF_A_LIFE = 10  # then a new file system: each look reads all of it
_INTERVAL_S = 0.05
_ONE_SYNC_S = 2.0  # more than a sync ever takes here
_BATCHES = 10

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("loop_mount")]


@pytest.mark.parametrize("mount", _MOUNTS)
@pytest.mark.parametrize("fsync", _MODES)
def test_a_crash_loses_no_more_than_the_mode_allows(
    tmp_path: Path,
    make_daemon: Callable[..., TracedDaemon],
    survived: Counter[str],
    fsync: str,
    mount: str,
) -> None:
    for life in range(0, CRASHES, _CRASHES_OF_A_LIFE):
        seed = secrets.randbits(32)
        print(f"life {life}, seed {seed}")
        with Ext4(tmp_path / f"{life}", _MOUNTS[mount]) as image:
            living = _Life(image, make_daemon, fsync, random.Random(seed))
            for _ in range(min(_CRASHES_OF_A_LIFE, CRASHES - life)):
                living.crash()
                survived[f"crash of the operating system, mounted {mount}, fsync={fsync}"] += 1
            living.finish()
            assert living.lost or fsync != "never", "these crashes did no harm"


@pytest.mark.alone
@pytest.mark.parametrize("mount", _MOUNTS)
def test_what_is_older_than_the_interval_and_one_sync_is_kept(
    tmp_path: Path, make_daemon: Callable[..., TracedDaemon], survived: Counter[str], mount: str
) -> None:
    with Ext4(tmp_path / "disk", _MOUNTS[mount]) as image:
        daemon = make_daemon(image.place / "data", fsync="interval", fsync_interval=_INTERVAL_S)
        acknowledged_s: list[float] = []
        with daemon.start().client() as client:
            enough_s = math.inf  # some are old enough then, however slow this machine is
            while time.monotonic() < enough_s:
                client.push("app", [b"%d" % len(acknowledged_s)])
                acknowledged_s.append(time.monotonic())
                if len(acknowledged_s) == 60:
                    enough_s = time.monotonic() + 2 * _INTERVAL_S + 1.5 * _ONE_SYNC_S
                client.read("app", "next", 1, wait_ms=5)  # a steady pace, not a flood
        crashed_s = time.monotonic()
        image.crash(daemon)
        with daemon.start().client() as client:
            found = read_all(client, "app").messages
        age_s = crashed_s - (2 * _INTERVAL_S + _ONE_SYNC_S)
        promised = sum(at_s < age_s for at_s in acknowledged_s)
        assert found == [b"%d" % n for n in range(len(found))]
        assert 50 < promised <= len(found) <= len(acknowledged_s)
        survived[f"crash of the operating system, mounted {mount}, fsync=interval"] += 1


def test_more_files_than_are_in_memory_can_be_read_at_once(
    tmp_path: Path, make_daemon: Callable[..., TracedDaemon]
) -> None:
    """After a mount nothing is cached, and after a clean stop a start does not read the files."""
    with Ext4(tmp_path / "disk") as image:
        daemon = make_daemon(image.place / "data", partition_bytes=1).start()
        with daemon.client() as client:
            for n in range(30):
                client.push("app", [b"%d" % n])
        assert daemon.stop() == 0
        image.unmount()
        image.mount()
        with daemon.start().client() as client:
            got = client.read("app", 0, 30)
        assert messages(bytes(got.data)) == [b"%d" % n for n in range(30)]


def test_a_crash_while_another_mount_namespace_has_the_disk(
    tmp_path: Path, make_daemon: Callable[..., TracedDaemon]
) -> None:
    """Other tests make such namespaces. What was acknowledged with `always` is there."""
    with Ext4(tmp_path / "disk") as image:
        daemon = make_daemon(image.place / "data", fsync="always").start()
        with daemon.client() as client:
            client.push("app", [b"kept"])
        command = ["unshare", "--mount", "sh", "-c", "echo made; read end"]
        with subprocess.Popen(command, stdin=-1, stdout=-1) as namespace:
            assert namespace.stdout is not None
            assert namespace.stdout.readline() == b"made\n"
            image.crash(daemon)
            with daemon.start().client() as client:
                assert read_all(client, "app").messages == [b"kept"]
            assert daemon.stop() == 0
            namespace.communicate()


def _wait_topic_synced(client: Client, topic: str) -> None:
    wait_until(lambda: client.stats(topic)["unsynced_batches"] == "0")


class _Life:
    """A file system, the daemon on it, and who pushes."""

    def __init__(
        self, image: Ext4, make_daemon: Callable[..., TracedDaemon], fsync: str, rng: random.Random
    ) -> None:
        self._image, self._fsync, self._random = image, fsync, rng
        self._daemon = make_daemon(
            image.place / "data",
            fsync=fsync,
            fsync_interval=_INTERVAL_S,
            fsync_batches=_BATCHES,
            partition_bytes=rng.choice((3000, 20_000, 1 << 20)),
        )
        # where batches are counted, each push has to be one
        kinds = "sum sum id id" if fsync == "batches" else "line plain sum id id"
        self._ledger = Ledger(rng, kinds=kinds)
        self._daemon.start()
        self.lost = 0  # acknowledged, and gone

    def crash(self) -> None:
        """Push, lose power, start again, and look what is left."""
        daemon, ledger = self._daemon, self._ledger
        ledger.add_writer(f"t{len(ledger.writers)}", self._random.choice((SUM, ID)))
        epochs = self._epochs()
        if self._fsync in ("interval", "batches") and self._random.random() < 0.5:
            with ledger.load(daemon):
                ledger.wait_answers(self._random.randrange(1, 300))
            self._wait_synced()
        with ledger.load(daemon):
            ledger.wait_answers(self._random.randrange(1, 300))
            self._image.crash(daemon)
        daemon.start()
        lost = ledger.verify(daemon, lambda push: push.is_durable or self._fsync == "always")
        self.lost += sum(map(len, lost.values()))
        if self._fsync == "batches":
            assert all(len(pushes) <= 2 * _BATCHES for pushes in lost.values()), lost
        self._check_epochs(epochs)
        ledger.mark_durable()  # the start has synced what it found

    def _wait_synced(self) -> None:
        """Nothing is pushed now: in a moment all is synced, and must stay from then on."""
        with self._daemon.client() as client:
            for info in client.topics():
                _wait_topic_synced(client, info.topic)
        self._ledger.mark_durable()

    def _epochs(self) -> dict[str, int]:
        with self._daemon.client() as client:
            return {i.topic: int(client.stats(i.topic)["epoch"]) for i in client.topics()}

    def _check_epochs(self, before: dict[str, int]) -> None:
        """After a crash each topic is in a new epoch, which began where it ended."""
        with self._daemon.client() as client:
            for topic, epoch in before.items():
                stats = client.stats(topic)
                assert int(stats["epoch"]) > epoch
                assert stats["epoch_began"] == stats["next"]

    def finish(self) -> None:
        """Push again what was lost and has an id: then it is there, once."""
        with self._ledger.load(self._daemon):
            self._ledger.wait_resent()
        self._ledger.verify(self._daemon)
        for writer in self._ledger.writers.values():
            if writer.kind == ID:
                assert all(push.offset >= 0 for push in writer.sent), writer.name
        assert self._daemon.stop() == 0


def test_a_hole_behind_the_checkpoint_is_a_torn_tail(
    tmp_path: Path, make_daemon: Callable[..., TracedDaemon]
) -> None:
    """Of what was not synced, a power cut may keep the end, and its index, and lose the middle."""
    daemon = make_daemon(tmp_path / "data", fsync="never")
    with daemon.start().client() as client:
        for n in range(4):
            client.push("app", [b"%d" % n * 5000])
        unsynced = (daemon.topic_dir("app") / "checkpoint").read_bytes()
    assert daemon.stop() == 0  # the index is saved
    (daemon.topic_dir("app") / "checkpoint").write_bytes(unsynced)  # of the run, not of its end
    log = daemon.log_files("app")[0]
    data = bytearray(log.read_bytes())
    hole = data.index(b"2" * 5000)
    data[hole : hole + 100] = bytes(100)
    log.write_bytes(data)
    with daemon.start().client() as client:
        assert client.stats("app")["damages"] == "0", daemon.log
        assert read_all(client, "app").messages == [b"0" * 5000, b"1" * 5000]
        assert client.push("app", [b"again"]) == (2, 1)
    assert len(list(daemon.topic_dir("app").glob("quarantine/*"))) == 1
