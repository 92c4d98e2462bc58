"""What the service manager hears of a daemon, over a real datagram socket."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from logd import Client
from logd.net.systemd import Notifier
from tests.integration.operations.manager import PYTHON, Managed, Manager, environment
from tests.support.daemon import HANG_S, ROOT, running


def test_ready_after_the_listeners_are_open_then_stopping(tmp_path: Path) -> None:
    with (
        Manager(tmp_path) as manager,
        Managed(tmp_path / "data", {"NOTIFY_SOCKET": str(manager.path)}) as daemon,
    ):
        assert manager.next() == {"STATUS": "opening topics: 0 opened"}
        ready = manager.next()
        assert (ready["READY"], ready["MAINPID"]) == ("1", str(daemon.pid))
        assert ready["STATUS"] == "0 topics, 0 connections"
        assert daemon.stop() == 0
        stopping = manager.until("STOPPING")
        assert stopping["STATUS"] == "stopping"
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 10_000_000, "longer than stop-timeout"


def test_a_reload_is_told_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    with (
        Manager(tmp_path) as manager,
        Managed(tmp_path / "data", {"NOTIFY_SOCKET": str(manager.path)}) as daemon,
    ):
        manager.until("READY")
        before_usec = time.monotonic_ns() // 1000
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        reloading = manager.until("RELOADING")
        assert before_usec <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert manager.next()["READY"] == "1"
        daemon.wait_said("SIGHUP: ")
        with Client(daemon.address) as client:
            client.ping()


def test_a_reload_that_is_refused_ends_too(tmp_path: Path) -> None:
    with Manager(tmp_path) as manager:
        notifier = Notifier({"NOTIFY_SOCKET": str(manager.path)})
        with pytest.raises(RuntimeError), notifier.reloading(lambda: "as before"):
            raise RuntimeError
        assert "RELOADING" in manager.next()
        assert manager.next() == {"READY": "1", "STATUS": "as before"}


def test_an_abstract_socket_and_one_that_has_gone(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).notify(READY=1)
    Notifier({"NOTIFY_SOCKET": "@logd-test-nobody"}).notify(READY=1)
    Notifier({}).notify(READY=1)
    with running(tmp_path) as daemon:
        assert daemon.stop() == 0


def test_a_value_stays_on_its_line(tmp_path: Path) -> None:
    with Manager(tmp_path) as manager:
        notifier = Notifier({"NOTIFY_SOCKET": str(manager.path)})
        notifier.notify(STATUS="one\nREADY=1")
        assert manager.next() == {"STATUS": "one READY=1"}


def test_signs_of_life_come_while_the_loop_turns(tmp_path: Path) -> None:
    variables = {"WATCHDOG_USEC": "300000"}
    with Manager(tmp_path) as manager:
        variables["NOTIFY_SOCKET"] = str(manager.path)
        with Managed(tmp_path / "data", variables):
            for _ in range(5):
                assert "topics" in manager.until("WATCHDOG")["STATUS"]


HANGS = """
import sys
from pathlib import Path
from logd import store
from logd.__main__ import main
def hang(self):
    if Path(sys.argv[2], "hang").exists():
        print("hangs", flush=True)
        while True:
            pass
store.Store.check_retention = hang
main()
"""


def test_a_loop_that_hangs_gives_no_sign(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with Manager(tmp_path) as manager:
        variables = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "300000"}
        daemon = subprocess.Popen(
            [PYTHON, "-c", HANGS, "--data-dir", tmp_path / "data", "--host", "127.0.0.1:0",
             "--http-host", "off"],
            cwd=ROOT, env=environment() | variables, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        said = b""
        try:
            manager.until("WATCHDOG")
            (tmp_path / "data" / "hang").touch()
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == b"hangs\n"
            assert manager.is_silent(for_s=1.5)
            assert daemon.poll() is None
            daemon.send_signal(signal.SIGABRT)  # as systemd does then
            _, said = daemon.communicate(timeout=HANG_S)
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.communicate(timeout=HANG_S)
        assert b"in hang\n" in said, "where it hung"


def test_signs_meant_for_another_process(tmp_path: Path) -> None:
    environ = {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert Notifier(environ).watchdog_s == 0
    assert Notifier({"WATCHDOG_USEC": "1000000"}).watchdog_s == 1
    assert Notifier({"WATCHDOG_USEC": "soon"}).watchdog_s == 0


def test_a_start_that_gets_on_asks_for_more_time_and_one_that_hangs_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").write_bytes(b"x" * 100_000)
    with Manager(tmp_path) as manager:
        notifier = Notifier({"NOTIFY_SOCKET": str(manager.path)})
        notifier.extend_every_s = 0.01
        with notifier.starting(lambda: "at 7"):
            assert manager.next() == {"STATUS": "at 7"}
            while True:
                (tmp_path / "log").read_bytes()  # as a recovery does
                try:
                    told = manager.next(0.05)
                    break
                except TimeoutError:
                    pass
            assert told == {"EXTEND_TIMEOUT_USEC": "30000000", "STATUS": "at 7"}
            # The last read may have come between a look at the one before it and its word.
            assert manager.is_silent(for_s=0.5) or manager.is_silent(for_s=0.5)
