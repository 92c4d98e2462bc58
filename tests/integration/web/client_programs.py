"""Small programs that log with unmodified third-party clients, and what they are given to log.

A program in `programs/` is written as a user would write it, with the ports of the
documentation. It reads the texts to log from `records.json`, logs each one once, and ends. `run`
replaces the ports by those of a daemon, and fails if the program fails or prints anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from logd import Client, Reader
from logd.errors import NotFound
from tests.integration.web.shippers import NODE_MODULES, missing, program, wait_for
from tests.support.daemon import HANG_S, ROOT, Daemon, running

PROGRAMS = Path(__file__).parent / "programs"
PYTHON_CLIENTS = ROOT / "build" / "clients"
ELASTICSEARCH_8 = ROOT / "build" / "clients-elasticsearch-8"
COUNT = 1000
_LISTENING = re.compile(r"syslog at (\S+:[0-9]+)")

_ONE_LINE = (
    "plain text",
    "é ü 漢字 🙂 \u202e right to left \u200b",
    """"double" 'single' `back`""",
    r"\ \\ \n \" \u0041 C:\temp\new",
    "100% %s %d %(name)s {braces} {0} {{ }} $HOME ${HOME} $(id)",
    '{"level": "error", "tags": [1, null, "\\"x\\""]}',
    "a=1&b=2+3;c=%41%2B <13>1 - <b>&amp;</b>",
    "\ttabs\t and   spaces   ",
    "next line \x85 line separator \u2028 paragraph separator \u2029 form feed \x0c",
    "x" * 5_000,
    "長い行🙂" * 400,
)
_SEVERAL_LINES = (
    *_ONE_LINE,
    "first line\nsecond line\r\n\n  at fourth line\n",
    "controls \x01 \x1b[31mred\x1b[0m \x7f \b \r end",
)
_ANY_TEXT = (*_SEVERAL_LINES, "NUL \x00 inside")


def one_line_records() -> list[str]:
    """Texts that fit into one line of printable characters."""
    return _numbered(_ONE_LINE)


def records_without_nul() -> list[str]:
    """The same, with line ends and control characters in some of them."""
    return _numbered(_SEVERAL_LINES)


def records() -> list[str]:
    """The same, with NUL in some of them."""
    return _numbered(_ANY_TEXT)


def _numbered(texts: Sequence[str]) -> list[str]:
    return [f"line {n} {texts[n % len(texts)]}" for n in range(COUNT)]


class Target(NamedTuple):
    """A daemon with all its listeners, and a directory for the programs' files."""

    daemon: Daemon
    syslog: str
    directory: Path


@contextmanager
def target(directory: Path) -> Iterator[Target]:
    with running(directory, "--http-host", "127.0.0.1:0", "--syslog-host", "127.0.0.1:0") as daemon:
        listening = _LISTENING.search(daemon.log)
        assert listening is not None, daemon.log
        yield Target(daemon, listening[1], directory)


def run(target: Target, name: str, texts: Sequence[str], python_path: Path = PYTHON_CLIENTS) -> str:
    """Run a program to its end; it must succeed without a warning. Returns its output."""
    (target.directory / "records.json").write_text(json.dumps(list(texts)))
    source = (PROGRAMS / name).read_text()
    copy = target.directory / name
    copy.write_text(with_ports(target, source))
    if name.endswith(".py"):
        # A ResourceWarning is about the client's own sockets: HTTPHandler does not close them.
        warnings = ["-W", "default", "-W", "ignore::ResourceWarning"]
        command = [sys.executable, *warnings, str(copy)]
        environment = {**os.environ, "PYTHONPATH": str(python_path)}
    else:
        command, environment = [program("node"), str(copy)], dict(os.environ)
        modules = target.directory / "node_modules"
        if not modules.exists():
            modules.symlink_to(NODE_MODULES)
    return finished(command, target.directory, environment)


def with_ports(target: Target, text: str) -> str:
    """The documentation's ports replaced by those of the daemon, as in the documents' own tests."""
    for port, address in (
        ("1774", target.daemon.address),
        ("1775", target.daemon.http),
        ("1514", target.syslog),
    ):
        text = text.replace(port, address.rpartition(":")[2])
    return text


def finished(
    command: Sequence[str], directory: Path, environment: dict[str, str], stdin: bytes = b""
) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment, input=stdin, capture_output=True, timeout=HANG_S
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert done.stderr == b"", done.stderr.decode()
    return done.stdout.decode()


def needs_python_client(module: str, python_path: Path = PYTHON_CLIENTS) -> None:
    if not (python_path / module).exists():
        missing(f"the Python package of {module} is not installed")


def needs_node_client(module: str) -> None:
    if not (NODE_MODULES / module).exists():
        missing(f"the npm package {module} is not installed")


def stored(target: Target, topic: str, start: int = 0) -> list[bytes]:
    """All messages of a topic from this offset."""
    with Reader(target.daemon.address, topic, start=start) as reader:
        return [message.value for message in reader]


def received(target: Target, topic: str, count: int, start: int = 0) -> list[bytes]:
    """Wait for `count` messages, for senders that get no acknowledgement; then all there are."""
    wait_for(target.daemon, topic, start + count)
    return stored(target, topic, start)


def end_of(target: Target, topic: str) -> int:
    with Client(target.daemon.address) as client:
        try:
            return int(client.stats(topic)["next"])
        except NotFound:
            return 0
