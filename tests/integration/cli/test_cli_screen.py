"""What a person sees: `log-cli` in a terminal of 80 columns, by tmux, and the screen read back.

The terminal is looked at again and again until it shows what is waited for. What may be gone before
somebody looks, a bar, is found in the record of all that it was ever sent.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logd import Client, Writer
from tests.support.daemon import HANG_S, Daemon, running

COLUMNS, LINES = 80, 24
BIN = Path(sys.executable).parent
BAR = r"[━╸╺]{20} +\d+%"
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours, and where the cursor goes


def why_no_tmux() -> str | None:
    if shutil.which("tmux") is None:
        return "tmux is not installed"
    return None if (BIN / "log-cli").exists() else "log-cli is not installed beside this Python"


class Terminal:
    """A shell in a terminal of its own. `until` gives the first screen that matches."""

    def __init__(self, socket: Path, host: str, directory: Path) -> None:
        self.directory = directory
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        # By a file: a shell on the way may set some of these anew.
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "LOGD_HOST": host, "PS1": "$ ", "LC_ALL": "C.UTF-8"}
        rc = directory / "rc"
        rc.write_text("".join(f"export {name}='{value}'\n" for name, value in variables.items()))
        size = ["-x", str(COLUMNS), "-y", str(LINES), "-c", str(directory)]
        self._run("new-session", "-d", *size, f"bash --rcfile {rc}")
        self._record = directory / "record"
        self._run("pipe-pane", f"cat > {self._record}")

    def _run(self, *words: str) -> str:
        command = [*self._tmux, *words]
        environment = os.environ | {"LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=True, timeout=HANG_S
        )
        return done.stdout

    def type(self, line: str) -> None:
        self._run("send-keys", "-l", line)
        self._run("send-keys", "Enter")

    def press(self, key: str) -> None:
        self._run("send-keys", key)

    def screen(self) -> str:
        return self._run("capture-pane", "-p").rstrip("\n")

    def until(self, pattern: str, meanwhile: Callable[[], object] = lambda: None) -> str:
        deadline_s = time.monotonic() + HANG_S
        screen = self.screen()
        while not re.search(pattern, screen, re.MULTILINE):
            assert time.monotonic() < deadline_s, f"no {pattern} on the screen:\n{screen}"
            meanwhile()
            screen = self.screen()
        return screen

    def drawn(self, pattern: str) -> str:
        """The first line with this that was ever drawn, on the screen still or not."""
        deadline_s = time.monotonic() + HANG_S
        while True:
            sent = self._record.read_text(errors="replace") if self._record.exists() else ""
            for line in re.split(r"[\r\n]+", STYLE.sub("", sent)):
                if re.match(pattern, line):
                    return line
            screen = self.screen()
            assert time.monotonic() < deadline_s, f"{pattern} was never drawn:\n{screen}"

    def done(self) -> str:
        """The screen once the command has ended, without the lines that were typed."""
        self.until(r"^\$\Z")
        self.type("echo exit $?")
        screen = self.until(r"^exit \d+$")
        return "\n".join(line for line in screen.splitlines() if not line.startswith("$"))

    def close(self) -> None:
        self._run("kill-server")


@pytest.fixture
def terminal(daemon: Daemon, tmp_path: Path) -> Iterator[Terminal]:
    if reason := why_no_tmux():
        print(reason)
        pytest.skip(reason)
    terminal = Terminal(tmp_path / "tmux", daemon.address, tmp_path)
    try:
        terminal.until(r"^\$")
        yield terminal
    finally:
        terminal.close()


def long_file(tmp_path: Path, size: int = 60_000_000) -> int:
    """Lines that take a moment to write; how many."""
    (tmp_path / "long").write_bytes((b"x" * 99 + b"\n") * (size // 100))
    return size // 100


def test_a_bar_while_a_long_file_is_written(terminal: Terminal, tmp_path: Path) -> None:
    count = long_file(tmp_path)
    terminal.type("clear; log-cli write app --file long")
    assert len(terminal.drawn(rf"writing app {BAR} .* of 60 MB")) <= COLUMNS
    terminal.until(r"^app 0\.\.")
    # Nothing is left of the bar: it was one line, and always the same.
    assert terminal.done().strip() == f"app 0..{count - 1} ({count} messages)\nexit 0"


def test_a_bar_while_messages_go_to_a_file(
    terminal: Terminal, daemon: Daemon, tmp_path: Path
) -> None:
    with Writer(daemon.address, "app") as writer:
        writer.write_many([b"x" * 99] * 600_000)
    terminal.type("clear; log-cli read app > out; echo read all")
    terminal.drawn(rf"reading app {BAR} .* of 600k messages")
    assert "━" not in terminal.until(r"^read all$")
    assert (tmp_path / "out").stat().st_size == 600_000 * 100
    # It says something else: the first one's words may still be there before the screen is cleared.
    terminal.type("clear; log-cli read app --data-dir data -q --tail 599999 > out; echo read again")
    assert "━" not in terminal.until(r"^read again$")
    assert (tmp_path / "out").stat().st_size == 599_999 * 100


def test_no_bar_between_the_messages(terminal: Terminal, daemon: Daemon) -> None:
    with Writer(daemon.address, "app") as writer:
        writer.write_many([b"x" * 99] * 100_000 + [b"the last"])
    seen = terminal.screen()
    terminal.type("clear; log-cli read app")
    seen += terminal.until(r"^the last$")
    assert "━" not in seen


@pytest.fixture(scope="module")
def many_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that takes a moment to check: small batches do."""
    directory = tmp_path_factory.mktemp("many")
    with running(directory) as daemon:
        with Writer(daemon.address, "app", batch_bytes=200, max_in_flight=500) as writer:
            writer.write_many([b"x" * 99] * 120_000)
        daemon.stop()
    return daemon.data_dir


@pytest.mark.parametrize(
    ("command", "label"),
    [
        ("check", "checking"),
        ("repair", "repairing"),
        ("repair --dry-run", "reading"),
    ],
)
def test_a_bar_while_files_are_checked(
    terminal: Terminal, many_batches: Path, command: str, label: str
) -> None:
    terminal.type(f"clear; log-cli {command} --data-dir {many_batches}")
    terminal.drawn(rf"{label} {BAR} .* of \d+\.\d MB")
    terminal.until(r"^app: ok, 120000 messages")
    assert terminal.done().splitlines()[-1] == "exit 0"


def test_quiet_has_no_bar(terminal: Terminal, tmp_path: Path) -> None:
    long_file(tmp_path)
    seen: list[str] = []
    terminal.type("clear; log-cli write -q app --file long; echo written")
    seen.append(terminal.until(r"^written$", lambda: seen.append(terminal.screen())))
    assert not [screen for screen in seen if "━" in screen]


def test_bench_has_a_bar_and_then_the_result(terminal: Terminal) -> None:
    terminal.type("clear; log-cli bench app --messages 1000000 --read")
    terminal.drawn(rf"pushing app {BAR} .* of 1M messages")
    terminal.until(r"^read     ")
    lines = terminal.done().splitlines()
    assert [line.split()[0] for line in lines] == ["topic", "push", "latency", "read", "exit"]


# -- the live view ------------------------------------------------------------------------------


def test_the_live_view(terminal: Terminal, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("quiet", [b"x"])
        terminal.type("log-cli stats --watch 0.2")
        screen = terminal.until(
            r"^app +\S+ +\d+ +[1-9]\S* +\S+ \w+ +\S+ \w+/s\nquiet .*\npress Ctrl-C",  # all of it
            lambda: client.push("app", [b"hello"] * 1000),
        )
    head, totals, _, columns, line, *rows = screen.splitlines()
    assert re.fullmatch(r"logd \S+ at \S+ +up \d+s +fsync interval +connections 2", head)
    assert re.fullmatch(r"in +\S+ messages/s, \S+ \w+/s +out .* topics 2, faulted 0", totals)
    titles = ["TOPIC", "MESSAGES", "NEXT", "MESSAGES/S", "BYTES", "BYTES/S", "NOTE"]
    assert columns.split() == titles
    assert set(line) == {"─"}
    assert [row.split()[0] for row in rows] == ["app", "quiet", "press"]
    terminal.press("C-c")
    assert terminal.done().strip() == "exit 130"  # the view has gone, and the shell is back


def test_the_live_view_of_more_topics_than_fit(terminal: Terminal, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        for n in range(30):
            client.push(f"topic-{n:02d}-{'x' * 100}", [b"x"])
    terminal.type("log-cli stats --watch 0.2")
    screen = terminal.until(r"^13 less busy topics not shown; press Ctrl-C to stop")
    lines = screen.splitlines()
    assert len(lines) <= LINES
    assert lines[0].startswith("logd ")
    assert all(len(line) <= COLUMNS for line in lines)
    assert lines[5].startswith("topic-00-x")


def test_the_live_view_of_a_faulted_topic(tmp_path: Path, terminal: Terminal) -> None:
    with running(tmp_path / "other") as daemon:
        with Client(daemon.address) as client:
            client.push("app", [b"x"])
        daemon.stop()
        (daemon.topic_dir("app") / "meta.json").unlink()
        daemon.start()
        terminal.type(f"log-cli stats --watch 0.2 -H {daemon.address}")
        screen = terminal.until(r"^app .* faulted$")
    assert "faulted 1" in screen


def test_following_in_a_terminal(terminal: Terminal, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"first"])
        terminal.type("clear; log-cli read app --forever")
        terminal.until(r"^first$")
        client.push("app", [b"second"])
        screen = terminal.until(r"^second$")
    assert screen.splitlines()[-3:] == [
        "log-cli: following app; press Ctrl-C to stop",
        "first",
        "second",
    ]
    terminal.press("C-c")
    assert terminal.done().splitlines()[-1] == "exit 130"


def test_typing_messages(terminal: Terminal, daemon: Daemon) -> None:
    terminal.type("clear; log-cli write app")
    terminal.until("each line is a message; press Ctrl-D to finish")
    terminal.type("hello")
    terminal.press("C-d")
    terminal.until(r"^app 0\.\.0 \(1 message\)")


@pytest.mark.parametrize(
    "command",
    [
        "",
        "write",
        "read",
        "tail",
        "stats",
        "topics",
        "ping",
        "bench",
        "check",
        "repair",
        "backup",
        "restore",
        "forward",
        "archive",
        "history",
        "import",
    ],
)
def test_help_has_an_example_and_fits(terminal: Terminal, command: str) -> None:
    terminal.type(f"clear; log-cli {command} --help > help; echo written")
    terminal.until(r"^written$")
    text = (terminal.directory / "help").read_text()
    assert re.search(rf"^  (\S.* \| )?log-cli {command}", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "..." not in text.partition("Commands:")[2]  # each has a line that is whole
