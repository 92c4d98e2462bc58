"""Other people's log shippers as plain processes: where they are, and how they are set up.

`make shippers` unpacks them below `build/`; nothing is installed and no service is started. Where
that was not possible, one that is installed is used, or the test is skipped and says why.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from logd import Client
from logd.errors import NotFound
from tests.support.daemon import HANG_S, ROOT, Daemon

UNPACKED = ROOT / "build" / "shippers"
NODE_MODULES = ROOT / "build" / "npm" / "node_modules"
_LIBRARIES = (
    "usr/lib/syslog-ng", "usr/lib/*-linux-gnu", "lib/*-linux-gnu", "usr/lib/*-linux-gnu/systemd",
)  # fmt: skip
DOCUMENT = """template(name="document" type="list" option.jsonf="on") {
    property(outname="message" name="msg" format="jsonf")
}"""


def program(name: str) -> str:
    for directory in ("usr/sbin", "usr/bin", "lib/systemd", "usr/lib/systemd"):
        if (UNPACKED / directory / name).exists():
            return str(UNPACKED / directory / name)
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin:/lib/systemd")
    if found is None:
        missing(f"{name} is neither installed nor unpacked")
    return found


def module(pattern: str) -> Path:
    """The directory of the modules among which this one is."""
    found = [path for root in (UNPACKED, Path("/")) for path in root.glob(f"usr/lib/{pattern}")]
    if not found:
        missing(f"{pattern} is neither installed nor unpacked")
    return found[0].parent


def missing(reason: str) -> NoReturn:
    print(reason)
    pytest.skip(f"{reason}; `make shippers` does it")


def wait_for(daemon: Daemon, topic: str, count: int) -> None:
    """Wait until the topic has so many messages."""
    give_up_s = time.monotonic() + HANG_S
    with Client(daemon.address, timeout_s=2 * HANG_S) as client:
        while True:
            try:
                next_ = int(client.stats(topic)["next"])
            except NotFound:
                assert time.monotonic() < give_up_s, "nothing came"
                continue
            if next_ >= count:
                return
            read = client.read(topic, next_, 1, wait_ms=int(HANG_S * 1000))
            assert read.messages, f"{next_} of {count} came, and then no more"


@contextmanager
def process(command: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A shipper that runs, is asked to stop, and is ended where it does not. It may say things."""
    found = [str(path) for pattern in _LIBRARIES for path in UNPACKED.glob(pattern)]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(found)}
    with (directory / "said").open("wb") as said:
        running = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
        try:
            yield running
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGTERM)
            try:
                running.wait(HANG_S)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def rsyslog(directory: Path, action: str) -> list[str]:
    """It reads the file `lines` from its beginning and hands it to this action."""
    modules = module("*/rsyslog/omelasticsearch.so")
    (directory / "rsyslog.conf").write_text(
        f"""
        global(workDirectory="{directory}" maxMessageSize="64k")
        module(load="imfile")
        module(load="omelasticsearch")
        {DOCUMENT}
        input(type="imfile" File="{directory}/lines" Tag="test:" Ruleset="out")
        ruleset(name="out") {{
            {action}
        }}
        """
    )
    arguments = ["-n", "-f", f"{directory}/rsyslog.conf", "-i", f"{directory}/pid", "-M"]
    return [program("rsyslogd"), *arguments, str(modules)]


def syslog_ng(directory: Path, destination: str) -> list[str]:
    """It reads the file `lines` and sends it to this destination."""
    modules = module("syslog-ng/*/libhttp.so")
    (directory / "syslog-ng.conf").write_text(
        f"""@version: 3.38
        options {{ time-reopen(1); stats-freq(0); }};
        source lines {{ file("{directory}/lines" flags(no-parse) follow-freq(0.1)
            log-iw-size(10000) log-fetch-limit(1000)); }};
        destination logd {{ {destination}; }};
        log {{ source(lines); destination(logd); flags(flow-control); }};
        """
    )
    files = {"cfgfile": "syslog-ng.conf", "persist-file": "state", "pidfile": "pid", "control": "c"}
    arguments = [f"--{name}={directory}/{file}" for name, file in files.items()]
    arguments += ["--foreground", "--no-caps", "--stderr", f"--module-path={modules}"]
    return [program("syslog-ng"), *arguments]
