"""log-cli archive, history and import: what they print, and what they say when it cannot work."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cli.__main__ import main
from logd import Client
from tests.integration.archive.commands import Ran, log_cli
from tests.integration.archive.object_store import ObjectServer
from tests.integration.archive.reading import contents
from tests.support.daemon import Daemon

Run = Callable[..., Ran]


@pytest.fixture
def run(session: Any, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Run:
    """log-cli in this process and with the Spark that is there: a start takes seconds."""

    @contextmanager
    def shared(name: str, master: str | None = None) -> Iterator[Any]:
        with translated_errors():
            yield session

    from logd.archive.job_session import translated_errors

    monkeypatch.setattr("logd.archive.job_session.job_session", shared)
    monkeypatch.setenv("LOGD_HOST", daemon.address)

    def run(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["log-cli", *map(str, words)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capfdbinary.readouterr()
        return Ran(code, out.decode("utf-8", "backslashreplace"), err.decode())

    return run


@pytest.fixture
def archive(tmp_path: Path, daemon: Daemon, run: Run) -> Path:
    """Of two topics; one has a message more in the daemon."""
    with Client(daemon.address) as client:
        client.push("app", [b"hello", b"two\nlines", b"\xff"])
        client.push("web", [b"GET /"])
        assert run("archive", tmp_path / "archive").code == 0
        client.push("app", [b"status=500"])
    return tmp_path / "archive"


# -- what they print ----------------------------------------------------------------------------


def test_archive_says_what_became_of_each_message(tmp_path: Path, daemon: Daemon, run: Run) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"hello"] * 3)
        client.push("web", [b"GET /"])
    ran = run("archive", tmp_path / "archive")
    head, app, web = (line.split() for line in ran.out.splitlines())
    counts = ["MESSAGES", "ARCHIVED", "WRITTEN", "LOST", "EXPIRED", "PENDING"]
    assert head == ["TOPIC", *counts, "FILES", "BYTES"]
    assert app[:8] == ["app", "3", "0", "3", "0", "0", "0", "1"]
    assert web[:8] == ["web", "1", "0", "1", "0", "0", "0", "1"]
    assert ran.err.splitlines() == [
        "log-cli: archiving 4 messages of 2 topics",
        "log-cli: starting Spark (on this machine)",
    ]
    ran = run("archive", tmp_path / "archive", "-o", "json", "-q")
    report = json.loads(ran.out)
    assert [(t["topic"], t["messages"], t["already"]) for t in report["topics"]] == [
        ("app", 3, 3), ("web", 1, 1),
    ]  # fmt: skip
    assert ran.err == ""
    listed = run("archive", tmp_path / "archive", "--list").out.splitlines()
    assert [path.split("/")[0] for path in listed] == ["topic=app", "topic=web"]
    rows = [pq.read_table(tmp_path / "archive" / path).num_rows for path in listed]
    assert rows == [3, 1]


def test_history_has_the_forms_of_read(archive: Path, run: Run) -> None:
    ran = run("history", archive, "app", "--grep", "^[hs]")
    assert (ran.code, ran.out) == (0, "hello\nstatus=500\n")
    assert ran.err.splitlines() == [
        "log-cli: starting Spark (on this machine)",
        "log-cli: found 2 messages; searched 3 in the archive and 1 in the daemon",
    ]
    ran = run("history", archive, "app", "-q", "-o", "json", "--limit", "3")
    messages = [json.loads(line) for line in ran.out.splitlines()]
    assert [m.get("message", m.get("message_base64")) for m in messages] == [
        "hello", "two\nlines", "/w==",
    ]  # fmt: skip
    assert [m["offset"] for m in messages] == [0, 1, 2]
    ran = run("history", archive, "-q", "--where", "offset = 0")
    assert sorted(ran.out.splitlines()) == ["app: hello", "web: GET /"]
    ran = run("history", archive, "app", "-q", "--format", "{offset}:{size}", "--since", "1h")
    assert ran.out.split() == ["0:5", "1:9", "2:1", "3:10"]
    assert run("history", archive, "app", "-q", "--until", "1h").out == ""
    ran = run("history", archive, "app", "--archive-only", "-o", "raw")
    assert ran.out == "hellotwo\nlines\\xff"


def test_history_into_a_file(archive: Path, tmp_path: Path, run: Run) -> None:
    text, table = tmp_path / "found.txt", tmp_path / "found.parquet"
    assert run("history", archive, "app", "--grep", "h|s", "--to-file", text).out == ""
    assert text.read_bytes() == b"hello\ntwo\nlines\nstatus=500\n"
    assert run("history", archive, "app", "--to-file", table).code == 0
    assert pq.read_table(table)["offset"].to_pylist() == [0, 1, 2, 3]
    assert pq.read_table(table)["value"].to_pylist()[3] == b"status=500"
    assert sorted(path.name for path in tmp_path.glob("*found*")) == [table.name, text.name]


def test_history_into_a_topic(archive: Path, daemon: Daemon, run: Run) -> None:
    assert run("history", archive, "app", "--into", "found").code == 0
    everything = [b"hello", b"two\nlines", b"\xff", b"status=500"]
    assert contents(daemon.address, "found") == everything
    ran = run("history", archive, "web", "--into", "found")
    assert ran.code == 1
    assert "topic found is not empty: use --append" in ran.err
    assert run("history", archive, "web", "--into", "found", "--append").code == 0
    assert contents(daemon.address, "found") == [*everything, b"GET /"]


def test_import_says_what_was_written(archive: Path, daemon: Daemon, run: Run) -> None:
    ran = run("import", archive, "app", "--into", "again")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["TOPIC", "INTO", "MESSAGES", "SKIPPED", "WRITTEN"],
        ["app", "again", "3", "0", "3"],
    ]
    ran = run("import", archive, "app", "--into", "again", "-o", "json")
    [counts] = json.loads(ran.out)["topics"]
    assert (counts["messages"], counts["already"], counts["written"]) == (3, 3, 0)
    assert contents(daemon.address, "again") == [b"hello", b"two\nlines", b"\xff"]


# -- what they say when it cannot work ------------------------------------------------------------


def one_line(ran: Ran, code: int, *parts: str) -> None:
    assert ran.code == code, ran
    lines = [line for line in ran.err.splitlines() if "starting Spark" not in line]
    assert len(lines) == 1, lines
    for part in parts:
        assert part in lines[0]
    assert ran.out == ""


def test_wrong_hosts(tmp_path: Path, archive: Path, run: Run) -> None:
    for words in (["archive", tmp_path / "new"], ["history", archive], ["import", archive]):
        nobody = run(*words, "--host", "127.0.0.1:1")
        one_line(nobody, 1, "no logd answers at 127.0.0.1:1", "check the address")
        one_line(run(*words, "--host", "a:b"), 1, "is not an address; write host:port")
    assert not (tmp_path / "new").exists()


def test_wrong_topics(tmp_path: Path, archive: Path, run: Run) -> None:
    one_line(run("archive", tmp_path / "new", "nope"), 2, "no topic nope", "log-cli topics")
    one_line(
        run("history", archive, "nope"), 2, "no topic nope in the archive; it contains app, web"
    )
    one_line(
        run("import", archive, "nope"), 2, "no topic nope in the archive; it contains app, web"
    )
    one_line(run("import", archive, "app", "--into", "../x"), 2, "bad-topic")


def test_missing_archives(tmp_path: Path, run: Run, object_server: ObjectServer) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("".join(f'{k} = "{v}"\n' for k, v in object_server.options.items()))
    for command in ("history", "import"):
        one_line(run(command, tmp_path / "none"), 1, "there is no archive at", "log-cli archive")
        words = (command, object_server.new_bucket(), "--store-options", keys)
        one_line(run(*words), 1, "there is no archive at s3://")
        words = (command, "s3://no-such-bucket/logs", "--store-options", keys)
        one_line(run(*words), 1, "s3://no-such-bucket/logs")
    one_line(run("archive", tmp_path / "none", "--list"), 1, "there is no archive at")


def test_wrong_options(tmp_path: Path, archive: Path, run: Run) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("region = ")
    unknown = tmp_path / "unknown.toml"
    unknown.write_text('flavour = "sweet"\n')
    url = "s3://bucket/logs"
    cases: list[tuple[list[object], str]] = [
        (["history", archive, "--grep", "("], "invalid regular expression '(' for --grep"),
        (["history", archive, "--where", "nonsense = 1"], "nonsense"),
        (["history", archive, "--where", "value ="], "Syntax error"),
        (["history", archive, "--format", "{nope}"], "unknown field in --format"),
        (["history", archive, "--since", "yesterday"], "invalid time 'yesterday' for --since"),
        (["history", archive, "--until", "soon"], "invalid time 'soon' for --until"),
        (["history", archive, "--to-file", "a", "--into", "b"], "cannot be used together"),
        (["history", archive, "--master", "banana"], "invalid Spark master 'banana'"),
        (["archive", url, "--store-options", bad], "is not valid TOML"),
        (["archive", url, "--store-options", unknown], "flavour"),
        (["archive", "nonsense://x"], "nonsense://x cannot be opened"),
    ]
    for words, part in cases:
        one_line(run(*words), 1, part)


def test_a_master_that_is_not_there(tmp_path: Path, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"hello"])
    words = ("archive", tmp_path / "archive", "-q", "--master", "spark://127.0.0.1:1")
    one_line(log_cli(*words, host=daemon), 1, "no Spark master answers at spark://127.0.0.1:1")


def test_no_java(tmp_path: Path, daemon: Daemon) -> None:
    with Client(daemon.address) as client:
        client.push("app", [b"hello"])
    words = ("archive", tmp_path / "archive", "-q")
    nothing = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    one_line(log_cli(*words, host=daemon, **nothing), 1, "Spark needs Java 17 or later")
    elsewhere = {"JAVA_HOME": str(tmp_path)}
    one_line(log_cli(*words, host=daemon, **elsewhere), 1, "Spark needs Java 17", str(tmp_path))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("pyspark", ["archive", "x"]),
        ("pyspark", ["history", "x"]),
        ("pyarrow", ["import", "x"]),
        ("pyarrow", ["archive-partition", "x", os.devnull]),
    ],
)
def test_no_packages(tmp_path: Path, missing: str, words: list[str]) -> None:
    """As it is where logd was installed without its extra."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "def find_spec(name, *more):\n"
        f"    return None if name.split('.')[0] == {missing!r} else find(name, *more)\n"
        "PathFinder.find_spec = find_spec\n"
    )
    if words[0] == "archive-partition":
        words[2] = str(hidden)
    ran = log_cli(*words, PYTHONPATH=str(tmp_path))
    one_line(
        ran,
        1,
        f"the package {missing} is not installed; install it with: pip install 'logd[spark]'",
    )


def test_the_hook_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000000000.log"
    file.touch()
    ran = log_cli("archive-partition", tmp_path / "archive", file)
    one_line(ran, 1, "this command is run by the daemon", "use `log-cli archive`")


def test_log_cli_stays_quick(tmp_path: Path) -> None:
    """Neither Spark nor Arrow is imported by commands that need none of them."""
    code = (
        "import sys; import cli.__main__\n"
        "print([n for n in ('pyspark', 'pyarrow', 'numpy', 'obstore', 'msgspec', 'logd.archive')"
        " if n in sys.modules])"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert shutil.which("java") is not None
