"""Hours of following: the page stays as small as it was."""

from __future__ import annotations

import time

from logd import Client
from tests.browser.page import Page

MESSAGES = 100_000
MOST_ROWS = 2000
GROWTH_BYTES = 8_000_000
LINE = "INFO request %07d took 12 ms, customer 4711, cart with 3 items, all of it quite ordinary"


def fill(page: Page, start: int, stop: int) -> None:
    with Client(page.daemon.address) as client:
        for at in range(start, stop, 1000):
            client.push("app", [(LINE % n).encode() for n in range(at, at + 1000)])
    page.until(lambda: page.in_sight()[-1:] == [stop - 1])


def test_a_hundred_thousand_messages(page: Page) -> None:
    page.push("app", *(LINE % n for n in range(100)))
    page.open("/?topic=app&mark=customer")
    page.until(lambda: len(page.rows()) == 100)
    with Client(page.daemon.address) as client:
        client.push("app", [(LINE % n).encode() for n in range(100, 1000)])
    fill(page, 1000, 10_000)
    before = page.metrics()
    started_s = time.monotonic()
    fill(page, 10_000, MESSAGES)
    took_s = time.monotonic() - started_s
    after = page.metrics()
    print(
        f"{MESSAGES - 10_000} messages in {took_s:.1f} s; heap {before['JSHeapUsedSize'] / 1e6:.1f} MB"
        f" -> {after['JSHeapUsedSize'] / 1e6:.1f} MB, nodes {before['Nodes']:.0f} -> {after['Nodes']:.0f}"
    )
    assert len(page.rows()) == MOST_ROWS
    assert page.offsets() == list(range(MESSAGES - MOST_ROWS, MESSAGES))
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] + GROWTH_BYTES
    assert after["Nodes"] < 15 * MOST_ROWS
    assert after["JSEventListeners"] < 200


def test_large_messages_are_not_kept(page: Page) -> None:
    page.push("app", "small")
    page.open("/?topic=app")
    page.until(lambda: len(page.rows()) == 1)
    before = page.metrics()
    with Client(page.daemon.address) as client:
        for _ in range(50):
            client.push("app", [b"x" * 1_000_000])
    page.until(lambda: page.in_sight()[-1:] == [50])
    after = page.metrics()
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] + GROWTH_BYTES
