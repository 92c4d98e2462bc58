"""Logging libraries of Python, through LogdHandler and through HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs

import pytest

from tests.integration.web import client_programs
from tests.integration.web.client_programs import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with client_programs.target(tmp_path_factory.mktemp("clients")) as started:
        yield started


def test_loguru(target: Target) -> None:
    client_programs.needs_python_client("loguru")
    texts = client_programs.records()
    client_programs.run(target, "loguru_sink.py", texts)
    found = [json.loads(message) for message in client_programs.stored(target, "loguru")]
    *found, failed = found
    assert [record["message"] for record in found] == texts
    assert [record["extra"] for record in found] == [{"n": n} for n in range(len(texts))]
    assert (failed["message"], failed["exception"]) == ("failed", "ValueError: boom")
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")


def test_structlog(target: Target) -> None:
    client_programs.needs_python_client("structlog")
    texts = client_programs.records()
    client_programs.run(target, "structlog_fields.py", texts)
    found = [json.loads(message) for message in client_programs.stored(target, "structlog")]
    assert [record["message"] for record in found] == texts
    assert [record["n"] for record in found] == list(range(len(texts)))
    assert {record["order"] for record in found} == {17}


def test_structlog_with_its_own_json(target: Target) -> None:
    client_programs.needs_python_client("structlog")
    texts = client_programs.records()
    client_programs.run(target, "structlog_json.py", texts)
    found = [json.loads(message) for message in client_programs.stored(target, "structlog-json")]
    assert found == [{"name": "any key", "event": text, "level": "info"} for text in texts]


def test_http_handler(target: Target) -> None:
    texts = client_programs.records()
    client_programs.run(target, "http_handler.py", texts)
    found = [
        parse_qs(message.decode()) for message in client_programs.stored(target, "http-handler")
    ]
    assert [record["args"] for record in found] == [[str((text,))] for text in texts]
