"""A daemon under strace, which injects faults into its system calls.

    daemon.start()
    with Strace(daemon.process, "-e", "inject=fdatasync:error=EIO:when=3"):
        ...

A `TracedDaemon` is the `Daemon` of the other tests; a tracer can be attached to it before its first
system call.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Self, cast

from logd import Client
from tests.support.daemon import HANG_S, Daemon, wait_until
from tests.support.fork_server import ForkedProcess


class TracedDaemon(Daemon):
    def __init__(self, data_dir: Path, **settings: object) -> None:
        super().__init__(data_dir, ())
        self._program = self.command
        self.settings = settings
        self._tracer: Strace | None = None

    def start(self, *tracing: str, output: Path | None = None) -> Self:
        """Run it until it is ready; with arguments for strace, under that."""
        self.launch_traced(*tracing, output=output)
        self.wait_ready()
        return self

    def launch_traced(self, *tracing: str, output: Path | None = None) -> None:
        """Run it without waiting: it may never become ready."""
        is_traced = bool(tracing or output)
        # Disks are tiny, and networks are not the loopback.
        self.command = [*self._program, "--min-free-bytes", "0", "--allow-anonymous", "yes"]
        for name, value in self.settings.items():
            self.command += [f"--{name.replace('_', '-')}", str(value)]
        self.launch(held=is_traced)
        if is_traced:
            process = cast("ForkedProcess", self.process)
            try:
                self._tracer = Strace(process, *tracing, output=output)
            finally:
                process.release()

    def wait_ended(self, timeout_s: float = HANG_S) -> int:
        """Its exit code; the negative number of the signal if one ended it."""
        assert self.process is not None
        self.process.wait(timeout_s)
        return self._ended()

    def _ended(self) -> int:
        code = super()._ended()
        self._forget_tracer()
        return code

    def _forget_tracer(self) -> None:
        if self._tracer is not None:
            self._tracer.wait()
            self._tracer = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._forget_tracer()

    def attached(self, *tracing: str, output: Path | None = None) -> Strace:
        """A tracer for as long as a `with` lasts, or the daemon lives."""
        assert self.process is not None
        return Strace(self.process, *tracing, output=output)

    @property
    def has_recovered(self) -> bool:
        """Did it say at its start that a topic had to be checked, or more?"""
        return re.search(r"(INFO|WARNING|ERROR) topic \S+( is faulted)?: ", self.log) is not None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def reload(self, text: str) -> None:
        """Other settings for a daemon at work, and for its next start: `config` is its file."""
        Path(str(self.settings["config"])).write_text(text)
        os.kill(self.pid, signal.SIGHUP)

    def freeze(self) -> None:
        """Let no thread of it run any more; a system call that is under way goes on."""
        if not self.is_running or self._tracer is not None:
            return
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: all(state in "TtDZX" for state in self._states()))

    def _states(self) -> list[str]:
        """Of each of its threads: R where it runs, D where it waits in the kernel for a disk."""
        try:
            tasks = list(Path(f"/proc/{self.pid}/task").iterdir())
            stats = [(task / "stat").read_text() for task in tasks]
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [stat.rpartition(") ")[2][0] for stat in stats]

    def client(self, timeout_s: float = HANG_S) -> Client:
        return Client(self.address, timeout_s=timeout_s)


class Strace:
    """strace, attached to a process and all of its threads until that ends or this is closed."""

    def __init__(
        self,
        process: ForkedProcess | subprocess.Popen[str],
        *arguments: str,
        output: Path | None = None,
    ) -> None:
        command = ["strace", "-f", "-yy", "-s", "200", "-o", str(output or os.devnull)]
        self._strace = subprocess.Popen(
            [*command, *arguments, "-p", str(process.pid)], stderr=subprocess.PIPE, text=True
        )
        assert self._strace.stderr is not None
        said = self._strace.stderr.readline()
        self._drain = threading.Thread(target=self._strace.stderr.read)
        self._drain.start()
        if "attached" not in said:
            self.close()
            raise RuntimeError(said.strip())

    def close(self) -> None:
        """Let the process go on untraced; wait until all it did is written down."""
        if self._strace.poll() is None:
            self._strace.terminate()
        self.wait()

    def wait(self) -> None:
        """Until the traced process has ended."""
        self._strace.wait(HANG_S)
        self._drain.join()
        assert self._strace.stderr is not None
        self._strace.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def why_no_strace() -> str:
    """Why nothing can be traced here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed (Debian package strace)"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, text=True) as process:
        try:
            Strace(process).close()
        except RuntimeError as error:
            return f"this machine does not let strace attach: {error}"
        finally:
            process.communicate()
    return ""
