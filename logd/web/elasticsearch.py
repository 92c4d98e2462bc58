"""What Elasticsearch and OpenSearch clients require of a server besides the bulk request itself.

The official clients refuse a server whose responses lack `X-Elastic-Product`, after they have sent
their documents; many ask `GET /` for the version first. Imports nothing of logd.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRODUCT = (b"x-elastic-product", b"Elasticsearch")
VARY = {"vary": "Accept, Content-Type"}
# The version tells clients which API to expect. The tagline is what clients before 7.14 check.
INFO: dict[str, Any] = {
    "name": "logd",
    "cluster_name": "logd",
    "cluster_uuid": "logd",
    "version": {
        "number": "8.0.0",
        "build_flavor": "default",
        "build_type": "logd",
        "minimum_wire_compatibility_version": "7.17.0",
        "minimum_index_compatibility_version": "7.0.0",
    },
    "tagline": "You Know, for Search",
}
SHARDS = {"total": 1, "successful": 1, "failed": 0}


def names_product(path: str) -> bool:
    """Do Elasticsearch clients use this path? In no other route does a segment start with `_`."""
    return path == "/" or "/_" in path


def wants_info(headers: Mapping[str, str]) -> bool:
    """Does `GET /` ask for the description of the server, and not for the page?

    opensearch-py sends no `Accept`, but a JSON content type with every request.
    """
    accept = headers.get("accept", "")
    if "text/html" in accept:
        return False
    return "json" in accept or "json" in headers.get("content-type", "")


def created(index: str, offset: int) -> dict[str, Any]:
    """The response to one document that was stored."""
    return {
        "_index": index,
        "_id": str(offset),
        "_version": 1,
        "result": "created",
        "_shards": SHARDS,
        "_seq_no": offset,
        "_primary_term": 1,
    }
