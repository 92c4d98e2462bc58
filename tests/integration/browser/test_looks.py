"""How it looks, kept as pictures in build/screenshots; and whether all can use it, by axe."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.integration.browser.page import Page
from tests.support.daemon import Daemon, running

SIZES = {"wide": (1280, 800), "narrow": (390, 800)}
LOOKS = [(theme, size) for theme in ("light", "dark") for size in SIZES]
CHECKED = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("shop"), "--http-host", "127.0.0.1:0") as started:
        yield started


@pytest.fixture
def daemon(shop: Daemon) -> Daemon:
    return shop


@pytest.fixture(params=LOOKS, ids="-".join)
def look(page: Page, request: pytest.FixtureRequest) -> Iterator[str]:
    """The page in one theme and one size; the look's name."""
    theme, size = request.param
    emulate(page.browser, theme, *SIZES[size])
    yield f"{size}-{theme}"
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def emulate(browser: webdriver.Chrome, theme: str, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def ordinary(n: int, chance: random.Random) -> str:
    part = chance.random()
    if part < 0.05:
        return f"ERROR payment {n} failed: connection to 10.0.3.{n % 250} refused after 3 tries"
    if part < 0.12:
        return (
            f"WARN  slow query, {chance.randint(300, 4000)} ms: SELECT * FROM orders WHERE id = {n}"
        )
    if part < 0.3:
        user = {"id": n, "country": "PT", "tags": ["new", "mobile"]}
        return json.dumps({"level": "info", "service": "checkout", "user": user, "ms": n % 97})
    if part < 0.4:
        return f"DEBUG cache hit for key session:{n}"
    return f"INFO  GET /api/orders/{n} 200 {chance.randint(2, 90)} ms"


def stock(page: Page) -> None:
    chance = random.Random(7)
    for topic, messages in (("shop.orders", 400), ("nginx-access", 300), ("billing", 40)):
        page.push(topic, *(ordinary(n, chance) for n in range(messages)))


def check_with_axe(page: Page) -> None:
    source = files("axe_core_python").joinpath("axe.min.js").read_text()
    page.run(source)
    script = """
        const done = arguments[1], dialog = document.querySelector("dialog[open]");
        axe.run(dialog ?? document, {runOnly: arguments[0]}).then(({violations}) =>
            done(violations.map(({id, nodes}) => [id, nodes[0].html, nodes[0].failureSummary])));
    """
    found = page.browser.execute_async_script(script, CHECKED)
    assert found == []


def test_looks(page: Page, look: str) -> None:
    page.open("/")
    page.until(lambda: page.text("no-topics") or page.text("topic-list"))
    if page.text("no-topics"):
        picture(page, look, "empty")
        check_with_axe(page)
        stock(page)
    page.until(lambda: "shop.orders" in page.text("topic-list"))
    rates_grow(page)
    picture(page, look, "topics")
    check_with_axe(page)
    page.click('a[data-topic="shop.orders"]')
    page.until(page.rows)
    page.type("mark", "orders")
    page.until(lambda: page.run("return document.querySelector('mark')"))
    page.until(lambda: page.text("messages-rate"))
    picture(page, look, "live")
    page.open("/?topic=billing&filter=info&at=2")
    page.until(lambda: page.run("return document.querySelector('mark')"))
    json_row = (
        "[...document.querySelectorAll('.row')].find((r) => r.innerText.includes('checkout'))"
    )
    page.run(f"{json_row}.click()")
    page.until(lambda: page.run("return document.querySelector('.json-name')"))
    page.push("billing", "INFO  one more")
    page.until(lambda: page.text("fresh"))
    picture(page, look, "opened")
    check_with_axe(page)
    page.open("/?topic=shop.orders&filter=info&around=200")
    page.until(lambda: 200 in page.in_sight())
    picture(page, look, "context")
    for key, name in (("g", "seek"), ("d", "download"), ("?", "help")):
        page.press(key)
        page.until(lambda: page.run("return document.querySelector('dialog[open]')"))
        picture(page, look, name)
        check_with_axe(page)
        page.press(Keys.ESCAPE)
        page.until(lambda: not page.run("return document.querySelector('dialog[open]')"))


def rates_grow(page: Page) -> None:
    """Let the plots have something to show."""
    chance = random.Random(8)
    points = "return document.querySelector('a[data-topic=\"shop.orders\"] polyline').points.length"
    wanted = page.run(points) + 4

    def more() -> bool:
        page.push("shop.orders", *(ordinary(n, chance) for n in range(chance.randint(1, 30))))
        return bool(page.run(points) >= wanted)

    page.until(more)


def picture(page: Page, look: str, name: str) -> None:
    path: Path = page.picture(f"{name}-{look}")
    assert path.stat().st_size > 5000


def test_the_switch_is_kept(page: Page) -> None:
    page.open("/")
    page.run("localStorage.clear()")
    page.browser.refresh()
    paper = "return getComputedStyle(document.body).backgroundColor"
    emulate(page.browser, "dark", *SIZES["wide"])
    dark = page.run(paper)
    page.click("#theme")  # from auto to light
    light = page.run(paper)
    assert light != dark
    page.browser.refresh()
    page.until(lambda: "Light" in page.text("theme"))
    assert page.run(paper) == light
    page.run("localStorage.clear()")
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_keys_can_be_turned_off(page: Page) -> None:
    page.push("keys", "one")
    page.open("/?topic=keys")
    page.until(lambda: page.texts() == ["one"])
    page.press("?")
    page.click("#keys-on")
    page.press(Keys.ESCAPE)
    page.press("g")
    assert not page.run("return document.querySelector('dialog[open]')")
    page.click("#help-button")
    page.click("#keys-on")
    page.press(Keys.ESCAPE)
    page.press("g")
    page.until(lambda: page.run("return document.querySelector('#seek[open]')"))


def test_a_screen_reader_hears_of_new_messages_now_and_then(page: Page) -> None:
    page.push("heard", "one")
    page.open("/?topic=heard")
    page.until(lambda: page.texts() == ["one"])
    watch = """
        window.said = [];
        const region = document.getElementById("announce");
        const hears = new MutationObserver(() => window.said.push(region.textContent));
        hears.observe(region, {childList: true});
    """
    page.run(watch)
    for n in range(20):
        page.push("heard", f"more {n}")
        page.until(lambda n=n: page.texts()[-1:] == [f"more {n}"])  # type: ignore[misc]
    said = page.run("return window.said")
    assert 1 <= len(said) <= 5
    assert said[0] == "1 new message"
