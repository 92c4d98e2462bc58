"""Hours of following: the page stays as small as it was."""

from __future__ import annotations

import time

from logd import Client
from tests.integration.browser.page import Page

MESSAGES = 100_000
MOST_ROWS = 2000
GROWTH_BYTES = 8_000_000
LINE = "INFO request %07d took 12 ms, customer 4711, cart with 3 items, all of it quite ordinary"


def fill(page: Page, start: int, stop: int) -> None:
    with Client(page.daemon.address) as client:
        for at in range(start, stop, 1000):
            client.push(page.topic, [(LINE % n).encode() for n in range(at, at + 1000)])
    page.until(lambda: page.in_sight()[-1:] == [stop - 1])


def test_a_hundred_thousand_messages(page: Page) -> None:
    page.push(page.topic, *(LINE % n for n in range(100)))
    page.show("&mark=customer")
    page.until(lambda: len(page.rows()) == 100)
    with Client(page.daemon.address) as client:
        client.push(page.topic, [(LINE % n).encode() for n in range(100, 1000)])
    fill(page, 1000, 10_000)
    before = page.metrics()
    started_s = time.monotonic()
    for at in range(10_000, MESSAGES, 10_000):  # each with the time that a wait may take
        fill(page, at, at + 10_000)
    took_s = time.monotonic() - started_s
    after = page.metrics()
    names = ("JSHeapUsedSize", "Nodes")
    heap, nodes = (f"{before[name]:,.0f} -> {after[name]:,.0f}" for name in names)
    print(f"{MESSAGES - 10_000} messages in {took_s:.1f} s; bytes of heap {heap}, nodes {nodes}")
    assert len(page.rows()) == MOST_ROWS
    assert page.offsets() == list(range(MESSAGES - MOST_ROWS, MESSAGES))
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] + GROWTH_BYTES
    assert after["Nodes"] < 15 * MOST_ROWS
    assert after["JSEventListeners"] < 200


def test_large_messages_are_not_kept(page: Page) -> None:
    page.push(page.topic, "small")
    page.show()
    page.until(lambda: len(page.rows()) == 1)
    before = page.metrics()
    with Client(page.daemon.address) as client:
        for _ in range(50):
            client.push(page.topic, [b"x" * 1_000_000])
    page.until(lambda: page.in_sight()[-1:] == [50])
    after = page.metrics()
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] + GROWTH_BYTES


def test_a_page_that_falls_behind_leaves_some_out_and_says_so(page: Page) -> None:
    page.push(page.topic, "first")
    page.show()
    page.until(lambda: len(page.rows()) == 1)
    with Client(page.daemon.address) as client:
        for _ in range(3):
            client.push(page.topic, [b"x"] * 500_000)
    page.until(lambda: page.in_sight()[-1:] == [1_500_000])
    assert "messages to keep up" in page.text("messages")
    page.push(page.topic, "last")
    page.until(lambda: page.texts()[-1:] == ["last"])
