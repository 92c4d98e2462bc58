"""The files of the page: types, caching, and no way to any other file."""

from __future__ import annotations

import tomllib
from pathlib import PurePath

from tests.integration.web.conftest import Curl
from tests.support.daemon import ROOT

FILES = sorted(path.name for path in (ROOT / "logd" / "web" / "page").iterdir())
TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8"}
ELSEWHERE = [
    "/page/", "/page/../http.py", "/page/%2e%2e/http.py", "/page/..%2fhttp.py", "/page//etc/passwd",
    "/page/%2fetc%2fpasswd", "/page/app.js%00.html", "/page/APP.JS", "/page/nothing.js",
]  # fmt: skip
TYPES |= {"css": "text/css; charset=utf-8", "svg": "image/svg+xml"}


def test_each_file_comes_as_it_is_with_its_type(curl: Curl) -> None:
    for name in FILES:
        answer = curl(f"/page/{name}")
        assert answer.status == 200
        assert answer.body == (ROOT / "logd" / "web" / "page" / name).read_bytes()
        assert answer.headers["content-type"] == TYPES[name.partition(".")[2]]
        assert "'unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_is_at_the_root_whatever_is_asked_of_it(curl: Curl) -> None:
    index = (ROOT / "logd" / "web" / "page" / "index.html").read_bytes()
    assert curl("/").body == index
    assert curl("/?topic=app&filter=x&at=7").body == index
    assert curl("/", "--head").status == 200


def test_what_a_browser_has_is_not_sent_again(curl: Curl) -> None:
    first = curl("/page/app.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = curl("/page/app.js", "-H", f"If-None-Match: {known}")
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == tag
    assert curl("/page/app.js", "-H", 'If-None-Match: "other"').status == 200


def test_no_other_file_can_be_had(curl: Curl) -> None:
    for path in ELSEWHERE:
        answer = curl(path, "--path-as-is")
        assert answer.status == 404, path
        assert b"import" not in answer.body
        assert b"root:" not in answer.body


def test_the_page_names_no_other_host(curl: Curl) -> None:
    allowed = {b"http://www.w3.org/2000/svg"}  # a name of elements, never asked for
    for name in FILES:
        words = curl(f"/page/{name}").body.replace(b'"', b" ").split()
        named = {word.rstrip(b";") for word in words if b"://" in word}
        assert named <= allowed, name


def test_the_package_has_the_files() -> None:
    """What is installed has the page, and not only this directory."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    globs = settings["package-data"]["logd"]
    for name in FILES:
        assert any(PurePath(f"web/page/{name}").match(glob) for glob in globs), name
