"""The list of topics, from none on."""

from __future__ import annotations

import pytest

from tests.integration.browser.page import Page
from tests.support.daemon import Daemon


@pytest.fixture
def daemon(own: Daemon) -> Daemon:
    return own


def test_topics_and_their_rates(page: Page) -> None:
    page.open("/")
    page.until(lambda: "log-cli write app hello" in page.text("no-topics"))
    assert f"curl -d hello http://{page.daemon.http}/topics/app" in page.text("no-topics")
    page.push("app", "x")
    page.push("other", "y")
    page.until(lambda: "other" in page.text("topic-list"))
    assert page.text("no-topics") == ""
    page.until(lambda: pushed_and_rate(page) != "0/s · 0 B/s")
    page.click('a[data-topic="app"]')
    page.until(lambda: page.texts() == ["x"] or len(page.rows()) > 1)
    assert page.run("return document.querySelectorAll('#topic-list polyline[points]').length") >= 4
    page.press("t")
    page.press("oth")
    page.until(lambda: page.text("topic-list").startswith("other"))


def pushed_and_rate(page: Page) -> str:
    page.push("app", "x")
    return str(page.run("return document.querySelector('a[data-topic=app] .rate').textContent"))
