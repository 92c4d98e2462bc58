"""The daemon is killed and comes back: the page says so, and goes on where it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from selenium import webdriver

from tests.integration.browser.page import Page
from tests.support.daemon import Daemon, lasting_address, running

ALLOWED = ("Failed to load resource: net::ERR_",)  # whatever a browser makes of a kill


@pytest.fixture
def daemon(own: Daemon) -> Daemon:
    return own


@pytest.mark.parametrize("search", ["", "&filter=line"])
def test_nothing_is_lost_or_doubled(page: Page, tmp_path: Path, search: str) -> None:
    page.allowed = ALLOWED
    page.push("app", *(f"line {n}" for n in range(50)))
    page.open(f"/?topic=app{search}")
    page.until(lambda: len(page.rows()) == 50)
    page.push("app", "line 50")  # so that the stream has had one
    page.until(lambda: len(page.rows()) == 51)
    page.daemon.kill()
    page.until(lambda: "The daemon does not respond." in page.text("away"))
    assert page.text("daemon") == "disconnected"
    page.picture("away-wide-light")
    assert len(page.rows()) == 51
    http = page.daemon.http
    with running(tmp_path, "--http-host", http) as again:
        page.daemon = again
        page.push("app", *(f"line {n}" for n in range(51, 60)))
        page.until(lambda: page.text("away") == "" and len(page.rows()) >= 60)
        page.push("app", "line 60")
        page.until(lambda: page.offsets()[-1:] == [60])
        assert page.texts() == [f"line {n}" for n in range(61)]
        assert page.is_live()


def test_a_page_that_was_opened_too_early(page: Page, tmp_path: Path) -> None:
    """And one whose topic is not there yet."""
    page.allowed = (*ALLOWED, "404 (Not Found)")
    page.open("/?topic=later")
    page.until(lambda: "Topic later does not exist." in page.text("messages"))
    page.push("later", "here I am")
    page.until(lambda: page.texts() == ["here I am"])


def test_while_the_list_stands_still(page: Page, tmp_path: Path) -> None:
    page.allowed = ALLOWED
    page.push("app", *(f"line {n}" for n in range(300)))
    page.open("/?topic=app&at=100")
    # Also the messages before it: a page that is still loading opens again and counts from there.
    page.until(lambda: page.offsets()[:1] == [40] and page.in_sight()[:1] == [100])
    page.daemon.kill()
    page.until(lambda: page.text("away") != "")
    with running(tmp_path, "--http-host", page.daemon.http) as again:
        page.daemon = again
        page.push("app", "new")
        page.until(lambda: page.text("fresh") == "↓ 1 new")
        assert page.in_sight()[0] == 100
        page.click("#fresh")
        page.until(lambda: page.rows()[-1:] == [(300, "new")])


def test_a_topic_made_anew(page: Page, chromium: webdriver.Chrome, tmp_path: Path) -> None:
    """Another topic of the same name has other messages: nothing of the old one stays."""
    page.allowed = (*ALLOWED, "404 (Not Found)")
    page.push("app", *(f"old {n}" for n in range(20)))
    page.open("/?topic=app")
    page.until(lambda: len(page.rows()) == 20)
    page.daemon.kill()
    page.until(lambda: page.text("away") != "")
    with running(tmp_path / "other", "--http-host", page.daemon.http) as again:
        page.daemon = again
        page.push("app", *(f"other {n}" for n in range(30)))
        page.until(lambda: page.texts() == [f"other {n}" for n in range(30)])


def test_what_a_crash_took_is_taken_back(page: Page, tmp_path: Path) -> None:
    """The end of the log is lost, as with the power, and its offsets go to other messages."""
    page.allowed = (*ALLOWED, "status of 416")  # who comes back before the others are written
    with running(tmp_path / "lossy", "--http-host", lasting_address(), fsync="never") as lossy:
        page.daemon = lossy
        page.push("app", *(f"line {n}" for n in range(20)))
        kept_bytes = lossy.log_files("app")[0].stat().st_size
        page.push("app", "doomed", "doomed too")
        page.open("/?topic=app")
        page.until(lambda: page.texts()[-1:] == ["doomed too"])
        lossy.kill()
        page.until(lambda: page.text("away") != "")
        os.truncate(lossy.log_files("app")[0], kept_bytes)
    with running(tmp_path / "lossy", "--http-host", lossy.http, fsync="never") as again:
        page.daemon = again
        page.push("app", *(f"other {n}" for n in range(5)))
        wanted = [f"line {n}" for n in range(20)] + [f"other {n}" for n in range(5)]
        page.until(lambda: page.texts() == wanted)  # some of the others may come before the check
        assert page.offsets() == list(range(25))
        note = "The daemon lost the messages from offset 20 on; these offsets are reused."
        assert page.run("return document.querySelector('.note').textContent") == note
