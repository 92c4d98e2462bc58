"""The unit's own command in a clean machine, started as systemd would start it.

As the unit's user, without its capabilities and with no new privileges; `confined` adds what else
of its sandbox can be had without systemd: a read-only system but for what the unit names, hidden
homes, a private /tmp, and its filter of system calls.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.operations.machine import Machine
from tests.support.daemon import HANG_S, ROOT

UNIT = ROOT / "contrib" / "systemd" / "logd.service"


def settings(unit: Path = UNIT) -> dict[str, list[str]]:
    """Each key of [Service] with all its values."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().partition("[Service]")[2].partition("\n[Install]")[0].splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def allowed_calls() -> list[str]:
    """What SystemCallFilter= leaves, by systemd's own lists."""
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter"], capture_output=True, text=True, check=True
    )
    sets: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=@)", listed.stdout):
        name, *lines = block.splitlines()
        sets[name.strip()] = [line.strip() for line in lines if line.strip()[:1] not in ("", "#")]

    def calls(name: str) -> set[str]:
        if not name.startswith("@"):
            return {name}
        return set().union(*map(calls, sets[name]))

    allowed = calls("@default")
    for value in settings()["SystemCallFilter"]:
        words = value.removeprefix("~").split()
        chosen = set().union(*map(calls, words))
        allowed = allowed - chosen if value.startswith("~") else allowed | chosen
    return sorted(allowed)


class Service:
    """Started in a network of its own. `tell` waits for a line of its log."""

    def __init__(self, machine: Machine, *, confined: bool, writable: list[str]) -> None:
        self._machine = machine
        unit = settings()
        [self.command], [self._user] = unit["ExecStart"], unit["User"]
        state = f"/var/lib/{unit['StateDirectory'][0]}"
        machine.run(f"install -d -o {self._user} -g {self._user} -m 0700 {state}")
        self._script = self._as_systemd(unit, [state, *writable], confined)
        self.process: subprocess.Popen[str] | None = None
        self.log: list[str] = []

    def _as_systemd(self, unit: dict[str, list[str]], writable: list[str], confined: bool) -> str:
        root = shlex.quote(str(self._machine.root))
        lines = ["set -e", "ip link set lo up"]
        command = self.command
        if confined:
            self._machine.write("/run/allowed", "\n".join(allowed_calls()))
            self._machine.write(
                "/run/confine.py", (ROOT / "tests/integration/operations/confine.py").read_text()
            )
            lines += [f"mount --bind {root}{path} {root}{path}" for path in writable]
            lines += [f"mount -t tmpfs tmpfs {root}/tmp", f"mount -t tmpfs tmpfs {root}/home"]
            lines += [f"mount -t tmpfs -o mode=0 tmpfs {root}/root"]
            lines += [f"mount -o remount,bind,ro {root}"]
            command = f"/usr/bin/python3 /run/confine.py /run/allowed -- {command}"
        families = shlex.quote(" ".join(unit["RestrictAddressFamilies"]))
        without = f"--reuid={self._user} --regid={self._user} --init-groups --no-new-privs"
        without += " --bounding-set=-all --inh-caps=-all"
        variables = f"PATH=/usr/sbin:/usr/bin:/sbin:/bin FAMILIES={families}"
        lines.append(f"exec env -i {variables} chroot {root} setpriv {without} {command}")
        return "\n".join(lines)

    def start(self) -> None:
        words = [*self._machine.inside(), "unshare", "--mount", "--propagation", "private", "--net"]
        self.process = subprocess.Popen(
            [*words, "sh", "-c", self._script], stderr=subprocess.PIPE, text=True
        )
        self.wait_for("ready tcp=127.0.0.1:1774")

    def wait_for(self, text: str) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} was never said:\n{''.join(self.log)}")

    def cli(self, *words: str, stdin: str = "") -> str:
        """`log-cli` of the machine, in the service's network."""
        assert self.process is not None
        into = [*self._machine.inside(), "nsenter", f"--net=/proc/{self.process.pid}/ns/net"]
        done = subprocess.run(
            [*into, *self._machine.chroot(), "/opt/logd/bin/log-cli", *words],
            input=stdin, capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{''.join(self.log)}"
        return done.stdout

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=HANG_S)
        self.log.append(said)
        return self.process.returncode


@contextmanager
def serving(
    machine: Machine, *, confined: bool = False, writable: list[str] | None = None
) -> Iterator[Service]:
    service = Service(machine, confined=confined, writable=writable or [])
    service.start()
    try:
        yield service
    finally:
        service.stop()
