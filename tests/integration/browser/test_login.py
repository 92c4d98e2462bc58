"""The page of a daemon that asks for a token: the browser asks its user for it, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logd import Client, Endpoint
from tests.integration.browser.page import Page
from tests.support.daemon import Daemon, running

TOKEN, OTHER = "of-a-person-1234567890", "of-a-machine-123456789"
ACCESS = f"""
[tokens.person]
token = "{TOKEN}"
read = ["app*"]

[tokens.machine]
token = "{OTHER}"
write = ["*"]
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    file = tmp_path / "access.toml"
    file.touch(0o600)
    file.write_text(ACCESS)
    flags = ("--http-host", "127.0.0.1:0", "--access-file", str(file))
    with running(tmp_path, *flags) as started:
        yield started
        assert TOKEN not in started.log


def push(page: Page, topic: str, *messages: bytes) -> None:
    with Client(Endpoint(page.daemon.address, token=OTHER)) as client:
        client.push(topic, messages)


def log_in(page: Page, token: str) -> None:
    """As in the window that the browser opens: it keeps this for the daemon that asked."""
    page.browser.get(f"http://anybody:{token}@{page.daemon.http}/stats")


def test_the_page_behind_a_token(page: Page) -> None:
    """Its files, what it asks for, and the stream that it follows."""
    page.allowed = ("favicon.ico",)  # which browsers want of a bare /stats
    push(page, page.topic, b"before")
    push(page, "secret", b"not for everybody")
    log_in(page, TOKEN)
    page.show()
    page.until(lambda: page.texts() == ["before"])
    page.until(page.is_live)
    push(page, page.topic, b"live")
    page.until(lambda: page.texts() == ["before", "live"])
    page.until(lambda: page.topic in page.said())
    assert "secret" not in page.said()


def test_without_the_token_there_is_no_page(page: Page) -> None:
    page.allowed = ("401", "favicon.ico")
    push(page, page.topic, b"before")
    log_in(page, "wrong-1234567890-123456")
    page.show()
    assert "before" not in page.said()
    assert page.run("return document.scripts.length") == 0
