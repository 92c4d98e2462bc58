"""httpie: single objects, which it makes of its arguments, and bodies from its standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from . import client_programs
from .client_programs import COUNT, PYTHON_CLIENTS, Target

OBJECTS = 50  # a call takes 30 ms or more; the other records go as one array


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    client_programs.needs_python_client("httpie")
    with client_programs.target(tmp_path_factory.mktemp("clients")) as started:
        # Without this it asks the network for a newer version.
        settings = {"disable_update_warnings": True}
        (started.directory / "config.json").write_text(json.dumps(settings))
        yield started


@pytest.fixture(autouse=True)
def _environment(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPIE_CONFIG_DIR", str(target.directory))
    monkeypatch.setenv("PYTHONPATH", str(PYTHON_CLIENTS))


def http(target: Target, arguments: str, body: str) -> str:
    command = [sys.executable, "-m", "httpie", "--check-status"]
    command += client_programs.with_ports(target, arguments).split()
    return client_programs.finished(command, target.directory, dict(os.environ), body.encode())


def test_objects_and_an_array(target: Target) -> None:
    texts = client_programs.records_without_nul()
    client_programs.run(target, "httpie_objects.py", texts[:OBJECTS])
    array = json.dumps([{"message": text} for text in texts[OBJECTS:]])
    answer = http(target, "POST 127.0.0.1:1775/topics/httpie", array)
    assert json.loads(answer) == {"offset": OBJECTS, "messages": COUNT - OBJECTS}
    found = [json.loads(message) for message in client_programs.stored(target, "httpie")]
    assert found == [{"message": text} for text in texts]


def test_lines(target: Target) -> None:
    """A body from the standard input is JSON to httpie, unless it is told another type."""
    texts = client_programs.one_line_records()
    lines = "".join(f"{text}\n" for text in texts)
    http(target, "POST 127.0.0.1:1775/topics/lines Content-Type:text/plain", lines)
    found = [message.decode() for message in client_programs.stored(target, "lines")]
    assert found == texts


def test_a_form(target: Target) -> None:
    http(target, "--ignore-stdin --form POST 127.0.0.1:1775/topics/form level=info message=é", "")
    assert client_programs.stored(target, "form") == [b"level=info&message=%C3%A9"]
