"""The end of a topic, as it grows: live, paused, filtered."""

from __future__ import annotations

import time

from selenium.webdriver.common.keys import Keys

from logd import Client
from tests.integration.browser.page import Page


def test_a_message_is_shown_soon_after_it_was_written(page: Page) -> None:
    page.push(page.topic, "before")
    page.show()
    page.until(lambda: page.texts() == ["before"])
    page.write(page.topic, "hello there")
    wrote_s = time.monotonic()
    page.until(lambda: page.texts() == ["before", "hello there"])
    took_ms = 1000 * (time.monotonic() - wrote_s)
    print(f"shown {took_ms:.0f} ms after log-cli had ended")
    assert took_ms < 5000


def test_a_pause_holds_the_list_and_counts_what_is_new(page: Page) -> None:
    page.push(page.topic, *(f"old {n}" for n in range(100)))
    page.show()
    page.until(lambda: len(page.rows()) == 100 and page.is_live())
    page.click("#follow")
    before = page.rows()
    page.push(page.topic, *(f"new {n}" for n in range(7)))
    page.until(lambda: page.text("fresh") == "↓ 7 new")
    assert page.rows() == before
    assert not page.is_live()
    page.click("#fresh")
    page.until(lambda: len(page.rows()) == 107)
    assert page.offsets() == list(range(107))
    assert page.is_live()
    page.push(page.topic, "and on")
    page.until(lambda: page.rows()[-1:] == [(107, "and on")])


def test_scrolling_up_pauses_and_coming_back_follows(page: Page) -> None:
    page.push(page.topic, *(f"line {n}" for n in range(150)))
    page.show()
    page.until(lambda: 149 in page.in_sight())
    page.run("document.getElementById('box').scrollTop -= 300")
    page.until(lambda: not page.is_live())
    page.push(page.topic, "new")
    page.until(lambda: page.text("fresh") == "↓ 1 new")
    page.run("const box = document.getElementById('box'); box.scrollTop = box.scrollHeight")
    page.until(lambda: page.is_live() and page.in_sight()[-1:] == [150])
    assert page.offsets() == list(range(151))


def test_a_filter_finds_old_messages_and_sifts_new_ones(page: Page) -> None:
    page.push(
        page.topic, *("ERROR: no (space)" if n % 10 == 3 else f"fine {n}" for n in range(5000))
    )
    page.show()
    page.until(page.rows)
    page.filter("error: no (")  # text, not a regular expression; its case does not matter
    page.until(lambda: page.offsets()[-1:] == [4993] and len(page.rows()) >= 200)
    assert all(offset % 10 == 3 for offset in page.offsets())
    hit = "return document.querySelector('mark.hit')?.textContent"
    page.until(lambda: page.run(hit) == "ERROR: no (")  # a worker finds it behind the rows
    page.push(page.topic, "fine", "another error: no (way)", "fine")
    page.until(lambda: page.rows()[-1:] == [(5001, "another error: no (way)")])
    assert page.address() == {"topic": page.topic, "filter": "error: no ("}
    page.click("#match-case")
    page.until(lambda: page.rows() == [(5001, "another error: no (way)")])


def test_what_is_new_behind_a_filter_is_counted_too(page: Page) -> None:
    page.push(page.topic, *("good" if n % 2 else "bad" for n in range(40)))
    page.show("&filter=good")
    page.until(lambda: len(page.rows()) == 20)
    page.press(" ")
    page.until(lambda: not page.is_live())
    page.push(page.topic, "bad", "good", "bad", "good", "good")
    page.until(lambda: page.text("fresh") == "↓ 3 new")
    page.press(" ")
    page.until(lambda: len(page.rows()) == 23)
    assert page.texts() == ["good"] * 23


def test_a_regular_expression_and_one_that_is_none(page: Page) -> None:
    page.allowed = ("400 (Bad Request)",)
    page.push(page.topic, "a1", "b2", "c33")
    page.show()
    page.until(lambda: len(page.rows()) == 3)
    page.click("#regex")
    page.filter(r"^[a-c]\d$")
    page.until(lambda: page.texts() == ["a1", "b2"])
    page.filter("(")
    page.until(lambda: "not a regular expression" in page.text("filter-error"))
    page.filter("c3+")
    page.until(lambda: page.texts() == ["c33"])
    assert page.text("filter-error") == ""


def test_an_expression_that_takes_for_ever_costs_the_highlight_only(page: Page) -> None:
    page.push(page.topic, "a" * 60 + "!")
    page.show("&re=1&mark=(a%2B)%2B%24")
    page.until(lambda: "Highlighting is disabled" in page.text("toast"))
    page.push(page.topic, "still here")
    page.until(lambda: page.texts()[-1:] == ["still here"])


def test_highlight_marks_and_hides_nothing(page: Page) -> None:
    page.push(page.topic, "one two three", "four")
    page.show()
    page.until(lambda: len(page.rows()) == 2)
    page.press("h")
    page.press("two", Keys.ENTER)
    page.until(lambda: page.run("return document.querySelector('mark.mark')?.textContent") == "two")
    assert page.texts() == ["one two three", "four"]
    assert page.address()["mark"] == "two"


def test_a_page_that_nobody_sees_listens_to_nothing(page: Page) -> None:
    page.push(page.topic, "one")
    page.show()
    page.until(lambda: page.texts() == ["one"])
    with Client(page.daemon.address) as client:
        page.until(lambda: client.stats(page.topic)["waiting_reads"] == "1")
        turn(page, hidden=True)
        page.until(lambda: client.stats(page.topic)["waiting_reads"] == "0")
        page.push(page.topic, "two", "three")
        turn(page, hidden=False)
        page.until(lambda: page.texts() == ["one", "two", "three"])
        page.push(page.topic, "four")
        page.until(lambda: page.texts() == ["one", "two", "three", "four"])


def turn(page: Page, *, hidden: bool) -> None:
    """As if another tab had come to the front, or gone."""
    script = """
        Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    """
    page.run(script, hidden)
