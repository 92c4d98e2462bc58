"""curl and httpie, as they are typed into a shell."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator

import pytest

from tests.integration.web import client_programs, shippers
from tests.integration.web.client_programs import COUNT, PYTHON_CLIENTS, Target

CURL_LINES = "curl -sS --data-binary @lines.txt http://127.0.0.1:1775/topics/app"
CURL_ARRAY = "curl -sS --json @array.json http://127.0.0.1:1775/topics/app"
HTTPIE_OBJECT = "http POST http://127.0.0.1:1775/topics/app message=hello"
HTTPIE_ARRAY = "http POST http://127.0.0.1:1775/topics/app < array.json"
HTTPIE_LINES = "http POST http://127.0.0.1:1775/topics/app Content-Type:text/plain < lines.txt"
HTTPIE_FORM = "http --form POST http://127.0.0.1:1775/topics/app level=info message=é"
OBJECTS = 50  # one call takes 30 ms or more, so the other records go as one array


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with client_programs.target(tmp_path_factory.mktemp("clients")) as started:
        # Without this setting httpie asks the network for a newer version.
        settings = {"disable_update_warnings": True}
        (started.directory / "config.json").write_text(json.dumps(settings))
        yield started


@pytest.fixture(autouse=True)
def _environment(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPIE_CONFIG_DIR", str(target.directory))
    monkeypatch.setenv("PYTHONPATH", str(PYTHON_CLIENTS))


def typed(target: Target, command: str) -> dict[str, int]:
    """Run a command as a shell does, with a file as its standard input; its JSON answer."""
    line, _, name = command.partition(" < ")
    words = shlex.split(client_programs.with_ports(target, line))
    if words[0] == "http":
        client_programs.needs_python_client("httpie")
        words[0:1] = [sys.executable, "-m", "httpie", "--check-status"]
        words += [] if name else ["--ignore-stdin"]  # which is not a terminal here
    elif shutil.which(words[0]) is None:
        shippers.missing(f"there is no {words[0]}")
    body = (target.directory / name).read_bytes() if name else b""
    answer = client_programs.finished(words, target.directory, dict(os.environ), body)
    stored: dict[str, int] = json.loads(answer)
    return stored


def write_lines(target: Target, texts: list[str]) -> None:
    (target.directory / "lines.txt").write_text("".join(f"{text}\n" for text in texts))


def write_array(target: Target, texts: list[str]) -> None:
    array = [{"message": text} for text in texts]
    (target.directory / "array.json").write_text(json.dumps(array))


@pytest.mark.parametrize("command", [CURL_LINES, HTTPIE_LINES])
def test_lines(target: Target, command: str) -> None:
    texts = client_programs.one_line_records()
    write_lines(target, texts)
    stored = typed(target, command)
    assert stored["messages"] == COUNT
    found = client_programs.stored(target, "app", stored["offset"])
    assert [message.decode() for message in found] == texts


@pytest.mark.parametrize("command", [CURL_ARRAY, HTTPIE_ARRAY])
def test_an_array(target: Target, command: str) -> None:
    texts = client_programs.records()
    write_array(target, texts)
    stored = typed(target, command)
    assert stored["messages"] == COUNT
    found = client_programs.stored(target, "app", stored["offset"])
    assert [json.loads(message) for message in found] == [{"message": text} for text in texts]


def test_httpie_with_objects(target: Target) -> None:
    client_programs.needs_python_client("httpie")
    texts = client_programs.records_without_nul()[:OBJECTS]
    start = client_programs.end_of(target, "app")
    client_programs.run(target, "httpie_objects.py", texts)
    assert typed(target, HTTPIE_OBJECT) == {"offset": start + OBJECTS, "messages": 1}
    found = client_programs.stored(target, "app", start)
    wanted = [{"message": text} for text in [*texts, "hello"]]
    assert [json.loads(message) for message in found] == wanted


def test_httpie_with_a_form(target: Target) -> None:
    stored = typed(target, HTTPIE_FORM)
    found = client_programs.stored(target, "app", stored["offset"])
    assert found == [b"level=info&message=%C3%A9"]
