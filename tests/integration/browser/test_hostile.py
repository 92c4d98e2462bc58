"""Messages that want to be more than text, and addresses that somebody made up."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.integration.browser.page import Page

SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked = 1'><svg onload='window.hacked = 1'>"
LONG = "long " + "x" * (1 << 20)
HOSTILE: list[tuple[str | bytes, str]] = [
    (SCRIPT, SCRIPT),
    (IMAGE, IMAGE),
    ("\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J", "red ␛]0;title␇ ␛[2J"),
    ("nul \0 bell \a return \r", "nul ␀ bell ␇ return ␍"),
    ("right \u202eto left\u202c, \u2066isolated", "right ⟨202E⟩to left⟨202C⟩, ⟨2066⟩isolated"),
    ("separators \u2028 \u2029 \x85", "separators ⟨2028⟩ ⟨2029⟩ ⟨0085⟩"),
    (b"bytes \xff\xfe \\ \n", "bytes \\xff\\xfe \\\\ \\x0a"),
    ('{"__proto__": {"hacked": 1}, "html": "</script><b>"}',) * 2,
    ("עברית and 日本 and 😀", "עברית and 日本 and 😀"),
    ("", ""),
    (LONG, LONG[:2000]),
]
ODD = ["\0" * 5000, "\x1b[31mx\x1b[0m" * 500, "e\u0301" * 3000, "\u202e" * 5000]


def test_messages_are_text_and_nothing_else(page: Page) -> None:
    page.push(page.topic, *(message for message, _ in HOSTILE))
    page.show("&mark=script")
    page.until(lambda: len(page.rows()) == len(HOSTILE))
    assert page.texts() == [shown for _, shown in HOSTILE]
    for offset in range(len(HOSTILE)):
        page.run("document.querySelector(arguments[0]).click()", page.row(offset))
    filled = (
        "return [...document.querySelectorAll('.detail pre')].filter((e) => e.firstChild).length"
    )
    page.until(lambda: page.run(filled) == len(HOSTILE) - 1)  # one message is empty
    inside = "return document.querySelectorAll('#messages :is(script, img, svg, b, iframe)').length"
    assert page.run(inside) == 0
    assert page.run("return [window.hacked, ({}).hacked]") == [None, None]
    assert page.run("return document.title") == f"{page.topic} · logd"
    dump = page.run("return document.querySelector('[data-offset=\"6\"] pre').textContent")
    assert dump == "00000000  62 79 74 65 73 20 ff fe 20 5c 20 0a              bytes .. \\ ."


def test_a_long_message_is_cut_and_can_be_had(page: Page) -> None:
    page.push(page.topic, LONG)
    page.show()
    page.until(lambda: len(page.rows()) == 1)
    assert page.run("return document.querySelector('.tag').textContent") == "1,048,581 characters"
    page.click(page.row(0) + " .offset")
    page.until(lambda: "more characters" in page.text("messages"))
    assert page.run("return document.querySelector('.detail pre').textContent.length") < 310_000
    link = page.run("return document.querySelector('.detail a').href")
    script = "const done = arguments[1]; fetch(arguments[0]).then((r) => r.text()).then(done)"
    assert page.browser.execute_async_script(script, link) == LONG + "\n"


def test_odd_characters_by_the_thousand_cost_little(page: Page) -> None:
    page.push(page.topic, *ODD * 100)
    page.show()
    page.until(lambda: len(page.rows()) >= 200)
    nodes = page.run("return document.querySelectorAll('*').length")
    assert nodes < 200 * len(page.rows())


@pytest.mark.parametrize("topic", ["<script>window.hacked = 1</script>", "../../etc/passwd", "a b"])
def test_made_up_topics(page: Page, topic: str) -> None:
    page.allowed = ("400 (Bad Request)", "404 (Not Found)")
    page.open(f"/?topic={quote(topic)}&filter={quote(IMAGE)}&mark={quote(SCRIPT)}&at=abc&around=-1")
    page.until(lambda: page.text("topic-name") == topic)
    page.until(lambda: page.text("messages") + page.text("filter-error"))
    assert page.run("return window.hacked") is None


def test_the_policy_would_stop_what_slips_through(page: Page) -> None:
    page.allowed = ("Content Security Policy",)
    page.open("/")
    put = "document.body.insertAdjacentHTML('beforeend', arguments[0])"
    page.run(put, "<img src='data:,' onerror='window.hacked = 1'>")
    page.until(lambda: any("Content Security Policy" in e["message"] for e in page.log("browser")))
    assert page.run("return window.hacked") is None
