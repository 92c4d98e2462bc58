"""The web page: the files of `logd/web/page/`, read once and served from memory.

A name is looked up in a table of what was packaged, so no path of a request ever reaches the file
system. Nothing is cached without being asked about: after an upgrade a browser has the new page at
its next look, and else an answer without a body.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import xxhash
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class _File(NamedTuple):
    data: bytes
    kind: str
    etag: str


class Page:
    def __init__(self) -> None:
        self._files = _packaged()

    async def index(self, request: Request) -> Response:
        return self._answer(request, INDEX)

    async def file(self, request: Request) -> Response:
        return self._answer(request, request.path_params["name"])

    def _answer(self, request: Request, name: str) -> Response:
        file = self._files.get(name)
        if file is None:
            text = "no such file of the page; the page itself is at /"
            return JSONResponse({"error": "not-found", "text": text}, 404)
        headers = {"etag": file.etag, "cache-control": "no-cache"}
        if _has(request, file.etag):
            return Response(None, 304, headers=headers)
        return Response(file.data, media_type=file.kind, headers=headers)


def _packaged() -> dict[str, _File]:
    found = {}
    for path in files("logd.web").joinpath("page").iterdir():
        kind = _TYPES.get(path.name.rpartition(".")[2])
        if kind is not None:
            data = path.read_bytes()
            found[path.name] = _File(data, kind, f'"{xxhash.xxh3_64_hexdigest(data)}"')
    return found


def _has(request: Request, etag: str) -> bool:
    """Does the client have this already? A proxy may have made the tag a weak one."""
    known = request.headers.get("if-none-match", "")
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in known.split(","))
