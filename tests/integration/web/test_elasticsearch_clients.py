"""Clients of Elasticsearch, OpenSearch and Loki: each record is stored once, in order, as it was.

None of them may raise or warn after its records were stored: a program would send them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.web import client_programs
from tests.integration.web.client_programs import ELASTICSEARCH_8, PYTHON_CLIENTS, Target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with client_programs.target(tmp_path_factory.mktemp("clients")) as started:
        yield started


@pytest.mark.parametrize("installed", [PYTHON_CLIENTS, ELASTICSEARCH_8], ids=["9", "8"])
def test_elasticsearch_py(target: Target, installed: Path) -> None:
    client_programs.needs_python_client("elasticsearch", installed)
    texts = client_programs.records()
    start = client_programs.end_of(target, "elasticsearch-py")
    client_programs.run(target, "elasticsearch_bulk.py", texts, installed)
    found = client_programs.stored(target, "elasticsearch-py", start)
    assert [json.loads(message) for message in found] == [{"message": text} for text in texts]


def test_opensearch_py(target: Target) -> None:
    client_programs.needs_python_client("opensearchpy")
    texts = client_programs.records()
    client_programs.run(target, "opensearch_bulk.py", texts)
    documents = [json.loads(message) for message in client_programs.stored(target, "opensearch-py")]
    assert documents == [{"message": text} for text in texts]


def test_elasticsearch_js(target: Target) -> None:
    client_programs.needs_node_client("@elastic/elasticsearch")
    texts = client_programs.records()
    client_programs.run(target, "elasticsearch_js.cjs", texts)
    documents = [
        json.loads(message) for message in client_programs.stored(target, "elasticsearch-js")
    ]
    assert documents == [{"message": text} for text in texts]


def test_pino_elasticsearch(target: Target) -> None:
    client_programs.needs_node_client("pino-elasticsearch")
    texts = client_programs.records()
    client_programs.run(target, "pino_elasticsearch.cjs", texts)
    documents = [json.loads(message) for message in client_programs.stored(target, "pino")]
    assert [document["msg"] for document in documents] == texts
    assert {"level", "time", "pid", "hostname", "msg"} == documents[0].keys()


def test_winston_loki(target: Target) -> None:
    client_programs.needs_node_client("winston-loki")
    texts = client_programs.records()
    client_programs.run(target, "winston_loki.cjs", texts)
    entries = [json.loads(message) for message in client_programs.stored(target, "winston")]
    assert [json.loads(entry["line"])["message"] for entry in entries] == texts
    assert entries[0]["labels"] == {"level": "info", "app": "winston"}


def test_pino_loki(target: Target) -> None:
    client_programs.needs_node_client("pino-loki")
    texts = client_programs.records()
    client_programs.run(target, "pino_loki.cjs", texts)
    entries = [json.loads(message) for message in client_programs.stored(target, "pino-loki")]
    assert [json.loads(entry["line"])["msg"] for entry in entries] == texts
    assert entries[0]["labels"]["app"] == "pino-loki"
