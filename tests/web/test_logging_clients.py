"""Logging libraries of Python, through LogdHandler and through HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs

import pytest

from . import client_programs
from .client_programs import Target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with client_programs.target(tmp_path_factory.mktemp("clients")) as started:
        yield started


def test_loguru(target: Target) -> None:
    client_programs.needs_python_client("loguru")
    texts = client_programs.records()
    client_programs.run(target, "loguru_sink.py", texts)
    found = [json.loads(message) for message in client_programs.stored(target, "loguru")]
    assert [record["message"] for record in found] == texts


def test_structlog(target: Target) -> None:
    client_programs.needs_python_client("structlog")
    texts = client_programs.records()
    client_programs.run(target, "structlog_stdlib.py", texts)
    found = [json.loads(message) for message in client_programs.stored(target, "structlog")]
    assert [record["message"] for record in found] == texts
    assert [record["n"] for record in found] == list(range(len(texts)))
    assert {record["order"] for record in found} == {17}


def test_http_handler(target: Target) -> None:
    texts = client_programs.records()
    client_programs.run(target, "http_handler.py", texts)
    found = [
        parse_qs(message.decode()) for message in client_programs.stored(target, "http-handler")
    ]
    assert [record["args"] for record in found] == [[str((text,))] for text in texts]
