"""A forwarder in a process of its own, a program that writes lines and never stops, logrotate."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from logd import Client, Reader
from tests.support.daemon import HANG_S, ROOT, Daemon, wait_until

TOPIC = "app"


def why_no_logrotate() -> str:
    return "" if shutil.which("logrotate") else "there is no logrotate; `make packages` installs it"


class Shipper:
    """`log-cli forward`: start it, kill it, start it again on the same state directory."""

    def __init__(self, directory: Path, address: str, *words: str) -> None:
        self._log, self._state = directory / "forward.log", directory / "state"
        self._command = [sys.executable, "-m", "cli", "forward", "--topic", TOPIC]
        self._command += ["--host", address, "--state-dir", str(self._state), *words]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> Self:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([*self._command, *more], cwd=ROOT, stderr=log)
        return self

    def first_start(self) -> Self:
        """What is rotated before this returns is not its to ship; what is behind it, is."""
        self.start().until_said("forwarding ")
        print("at first:", (self._state / "state.json").read_text())
        return self

    def run_once(self) -> int:
        """Ship what is there; the exit code."""
        return self.start("--once").ended()

    def ended(self) -> int:
        assert self.process is not None
        code = self.process.wait(HANG_S)
        assert "Traceback" not in self.log
        return code

    def lives_for(self, seconds: float) -> bool:
        """Does it still run after this long? The moment of a kill is chance's."""
        assert self.process is not None
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(HANG_S)

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def tell(self, path: Path) -> None:
        """Print what it said and knows, and which files there are: for a fault that is rare.

        Of a test that passes nobody sees it.
        """
        print(self.log, "at last:", (self._state / "state.json").read_text())
        for file in sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime_ns):
            status, first = file.stat(), file.read_bytes()[:20]
            times = status.st_mtime_ns, status.st_ctime_ns
            print(file.name, status.st_ino, status.st_size, *times, first)

    def until_said(self, text: str, times: int = 1) -> None:
        """Wait for it to say this. Each look takes the time that its exit is waited for."""
        for _ in range(int(HANG_S * 100)):
            if self.log.count(text) >= times:
                return
            assert self.lives_for(0.01), self.log
        raise AssertionError(f"it never said {text!r}:\n{self.log}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()


class Program:
    """Appends numbered lines to a file, for ever. Told to, it opens the file anew, or pauses.

    To be told, a file `reopen` beside the log is enough: that is what a postrotate script makes.
    """

    def __init__(self, path: Path, pause_s: float = 0.0005) -> None:
        self.path, self.count = path, 0
        self.reopen = path.with_name("reopen")
        self._pause_s = pause_s
        self._end, self._hold, self._held = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        file = self._opened()
        while not self._end.wait(self._pause_s):
            if self._hold.is_set():
                self._held.set()
                continue
            self._held.clear()
            if self.reopen.exists():
                os.close(file)
                file = self._opened()
                self.reopen.unlink()
            for _ in range(5):
                os.write(file, line(self.count) + b"\n")
                self.count += 1
        os.close(file)

    def _opened(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._held.clear()
        self._hold.set()
        assert self._held.wait(HANG_S)
        try:
            yield
        finally:
            self._hold.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()


def line(n: int) -> bytes:
    return b"%d says a program that writes a line and then another one" % n


LINE = re.compile(rb"([0-9]+) says a program that writes a line and then another one")


class Logrotate:
    def __init__(self, directory: Path, path: Path, *settings: str) -> None:
        self._state, self._conf = directory / "logrotate.state", directory / "logrotate.conf"
        reopen = path.with_name("reopen")
        wait = f"touch {reopen}; while test -e {reopen}; do sleep 0.01; done"
        lines = ["rotate 1000", "missingok", *settings]
        if "copytruncate" not in settings:
            lines += ["create", "postrotate", wait, "endscript"]
        self._conf.write_text("\n".join([f"{path} {{", *lines, "}", ""]))
        self._conf.chmod(0o600)

    def force(self) -> None:
        done = subprocess.run(
            ["logrotate", "-f", "-s", str(self._state), str(self._conf)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        )
        assert done.returncode == 0, done.stderr


def arrived(daemon: Daemon) -> list[bytes]:
    """All messages of the topic."""
    with Reader(daemon.address, TOPIC) as reader:
        return [message.value for message in reader]


def wait_for(daemon: Daemon, count: int) -> None:
    """Wait until the topic has so many messages."""
    with Client(daemon.address) as client:
        wait_until(lambda: sum(topic.next for topic in client.topics(TOPIC)) >= count)


def assert_once_and_in_order(got: Sequence[bytes], count: int) -> None:
    """These are the lines 0 to count - 1. Says where it goes wrong, not all of it."""
    for n, value in enumerate(got):
        assert value == line(n), f"at {n} of {count}: {got[max(0, n - 2) : n + 3]}"
    assert len(got) == count
