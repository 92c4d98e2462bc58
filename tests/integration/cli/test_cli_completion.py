"""What the Tab key finds: commands, options, and the topics of the daemon; never an error."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from socket import create_server
from time import monotonic

import pytest

from tests.support.daemon import HANG_S, ROOT, Daemon
from tests.support.log_cli import LOG_CLI, environment, fill, log_cli


def completed(host: str | Daemon, typed: str) -> list[str]:
    """What bash would offer at the end of this line."""
    asking = {
        "_LOG_CLI_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split(" ")) - 1),
    }
    done = subprocess.run(
        LOG_CLI,
        cwd=ROOT,
        env=environment(host) | asking,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def found(host: str | Daemon, typed: str) -> list[str]:
    """The same where there is something: it is left out if the daemon does not answer in time."""
    end_s = monotonic() + HANG_S
    while not (offered := completed(host, typed)):
        assert monotonic() < end_s
    return offered


def test_topics_of_the_daemon(daemon: Daemon) -> None:
    fill(daemon)
    log_cli(daemon, "write", "-q", "apple", "x")
    log_cli(daemon, "write", "-q", "pear", "x")
    assert found(daemon, "log-cli read ap") == ["app", "apple"]
    assert found(daemon, "log-cli tail p") == ["pear"]
    assert found(daemon, "log-cli stats ") == ["app", "apple", "pear"]
    assert found("127.0.0.1:1", f"log-cli --host {daemon.address} read pe") == ["pear"]
    assert found("127.0.0.1:1", f"log-cli read -H {daemon.address} pe") == ["pear"]
    daemon.stop()
    assert completed(daemon, f"log-cli read --data-dir {daemon.data_dir} ap") == ["app", "apple"]


def test_commands_and_options() -> None:
    assert completed("", "log-cli re") == ["read", "repair", "restore"]
    assert completed("", "log-cli read --unt") == ["--until"]


def test_silence_where_nobody_answers(nobody: str) -> None:
    assert completed(nobody, "log-cli read a") == []
    assert completed("no address", "log-cli read a") == []
    with closing(create_server(("127.0.0.1", 0))) as deaf:  # takes connections, says nothing
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        assert completed(address, "log-cli read a") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell: str) -> None:
    """Without Typer's guess which shell runs it: under a test that is none."""
    done = subprocess.run(
        [*LOG_CLI, "--show-completion", shell],
        cwd=ROOT,
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0
    assert "_LOG_CLI_COMPLETE" in done.stdout
