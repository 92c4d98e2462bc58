"""What the official Elasticsearch and OpenSearch clients require of a server.

The clients themselves run in other tests, and the answers to single requests are in
tests/integration/compatibility.
"""

from __future__ import annotations

import pytest

from tests.integration.web.conftest import Curl
from tests.support.daemon import Daemon

PRODUCT = "x-elastic-product"
ACCEPT = ("-H", "Accept: application/vnd.elasticsearch+json; compatible-with=8")
VENDOR = ("-H", "Content-Type: application/vnd.elasticsearch+x-ndjson; compatible-with=8")
JSON = ("-H", "Content-Type: application/json")
BROWSER = ("-H", "Accept: text/html,application/xhtml+xml,application/json;q=0.9,*/*;q=0.8")


@pytest.mark.parametrize("options", [ACCEPT, JSON, ("-H", "Accept: application/json")])
def test_the_root_describes_the_server_when_json_is_requested(
    curl: Curl, options: tuple[str, ...]
) -> None:
    answer = curl("/", *options)
    assert answer.status == 200
    assert answer.headers[PRODUCT] == "Elasticsearch"
    assert "json" in answer.headers["content-type"]
    info = answer.json()
    assert info["name"] == info["cluster_name"] == "logd"
    assert info["tagline"] == "You Know, for Search"
    assert info["version"]["number"].startswith("8.")


@pytest.mark.parametrize("options", [(), BROWSER, (*BROWSER, *JSON)])
def test_the_root_is_the_page_otherwise(curl: Curl, options: tuple[str, ...]) -> None:
    answer = curl("/", *options)
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["vary"] == "Accept, Content-Type"


def test_head_of_the_root(curl: Curl) -> None:
    answer = curl("/", "--head", *ACCEPT)
    assert (answer.status, answer.headers[PRODUCT], answer.body) == (200, "Elasticsearch", b"")


def test_each_of_many_documents_has_its_result(curl: Curl) -> None:
    """In order, with the offset in its own topic; the response is sent in pieces."""
    actions = [("index", "a"), ("create", "b!"), ("update", "a"), ("delete", "a"), ("index", "-")]
    body = b""
    for n in range(1500):
        action, index = actions[n % 5]
        body += b'{"%s": {"_index": "%s", "_id": "x"}}\n' % (action.encode(), index.encode())
        body += b"" if action == "delete" else b'{"n": %d}\n' % n
    answer = curl("/_bulk", *VENDOR, body=body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    told = answer.json()
    assert told["errors"] is True
    assert len(told["items"]) == 1500
    for n, item in enumerate(told["items"]):
        action, index = actions[n % 5]
        result = item[action]
        assert result["_index"] == index
        if n % 5 < 2:
            assert (result["status"], result["_id"]) == (201, str(n // 5))
        else:
            assert (result["status"], "reason" in result["error"]) == (400, True)
    assert curl("/topics/b").json()["next"] == 300


def test_a_document_is_a_json_object(empty: Daemon) -> None:
    curl = Curl(empty)
    for body in (b"", b"{", b"[1]", b'"text"', b"{} {}"):
        answer = curl("/web/_doc", *JSON, body=body)
        assert (answer.status, answer.json()["error"]) == (400, "bad-request")
    assert curl("/topics").json() == []
