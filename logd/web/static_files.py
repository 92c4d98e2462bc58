"""The web page: the files of `logd/web/page/`, read once and served from memory.

A name is looked up in a table of the packaged files, so no path of a request reaches the file
system. Browsers ask for each file again: after an upgrade they get the new page, otherwise a
response without a body.
"""

from __future__ import annotations

from importlib.resources import files

import xxhash
from starlette.responses import JSONResponse, Response

from logd.errors import NotFound
from logd.web import elasticsearch
from logd.web.request import HttpRequest

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


_FILES = {
    path.name: path.read_bytes()
    for path in files("logd.web").joinpath("page").iterdir()
    if path.name.rpartition(".")[2] in _TYPES
}


async def get_root(request: HttpRequest) -> Response:
    """The page, or the description of the server that Elasticsearch clients request."""
    if elasticsearch.wants_info(request.headers):
        return JSONResponse(elasticsearch.INFO, headers=elasticsearch.VARY)
    response = _respond(request, "index.html")
    response.headers.update(elasticsearch.VARY)
    return response


async def get_file(request: HttpRequest) -> Response:
    return _respond(request, request.path_params["name"])


def _respond(request: HttpRequest, name: str) -> Response:
    data = _FILES.get(name)
    if data is None:
        raise NotFound("the page has no such file; the page itself is at /")
    etag = f'"{xxhash.xxh3_64_hexdigest(data)}"'
    headers = {"etag": etag, "cache-control": "no-cache"}
    if _is_cached(request.headers.get("if-none-match", ""), etag):
        return Response(None, 304, headers=headers)
    return Response(data, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


def _is_cached(known: str, etag: str) -> bool:
    """Does the browser have this version? A proxy may have made the tag a weak one."""
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in known.split(","))
