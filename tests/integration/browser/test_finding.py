"""Places in a topic: by offset, by time, in context; and the address that says where one is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from logd import Client
from tests.integration.browser.page import Page

MESSAGES = 3000


@pytest.fixture
def long_topic(page: Page) -> Page:
    """Thirty batches of a hundred messages, each at a time of its own."""
    with Client(page.daemon.address) as client:
        for start in range(0, MESSAGES, 100):
            before_ms = last_ms(client, page.topic)
            while clock_ms() <= before_ms:
                pass
            client.push(page.topic, [b"line %d" % n for n in range(start, start + 100)])
    return page


def last_ms(client: Client, topic: str) -> int:
    partitions = client.partitions(topic) if client.topics(topic) else []
    return partitions[-1].max_time_ms if partitions else 0


def clock_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def test_seek_by_offset(long_topic: Page) -> None:
    page = long_topic
    page.show()
    page.until(lambda: MESSAGES - 1 in page.in_sight())
    page.press("g")
    page.type("seek-offset", "1234" + Keys.ENTER)
    page.until(lambda: page.in_sight()[:1] == [1234])
    assert not page.is_live()
    assert page.address() == {"topic": page.topic, "at": "1234"}
    page.press("g")
    page.type("seek-offset", f"{MESSAGES}{Keys.ENTER}")
    page.until(lambda: page.text("seek-error") == f"This topic has offsets 0 to {MESSAGES - 1}.")


def test_seek_by_time(long_topic: Page) -> None:
    page = long_topic
    with Client(page.daemon.address) as client:
        first_ms = client.partitions(page.topic)[0].min_time_ms
    page.show("&at=1500")
    page.until(lambda: page.in_sight()[:1] == [1500])
    shown = page.run("return document.querySelector('.row[data-offset=\"1500\"] time').dateTime")
    page.press("u")  # the field is in UTC now
    page.click("#seek-button")
    page.submit("seek-time", datetime.fromtimestamp(first_ms / 1000, UTC).isoformat()[:23])
    page.until(lambda: page.in_sight()[:1] == [0])
    page.click("#seek-button")
    page.submit("seek-time", shown.removesuffix("Z"))
    page.until(lambda: page.in_sight()[:1] == [1500])
    page.click("#seek-button")
    page.submit("seek-time", "2999-01-01T00:00:00.000")
    page.until(lambda: page.text("seek-error") == "There are no messages at or after this time.")


def test_reading_on_in_both_directions(long_topic: Page) -> None:
    page = long_topic
    page.show("&at=1500")
    page.until(lambda: page.in_sight()[:1] == [1500])
    seen = set(page.offsets())
    while 0 not in seen:
        before = min(seen)  # not of another look: more may have come since
        page.until(lambda before=before: scrolled(page, 0)[0] < before)  # type: ignore[misc]
        seen |= set(page.offsets())
    while MESSAGES - 1 not in seen:
        before = max(seen)
        page.until(lambda before=before: scrolled(page, 1)[-1] > before)  # type: ignore[misc]
        seen |= set(page.offsets())
        assert len(page.offsets()) <= 2000
    offsets = page.offsets()
    assert offsets == list(range(offsets[0], MESSAGES))
    assert seen == set(range(MESSAGES))


def scrolled(page: Page, part: int) -> list[int]:
    """To the beginning or the end of what is loaded; the offsets that are loaded."""
    page.run(
        "const b = document.getElementById('box'); b.scrollTop = arguments[0] * b.scrollHeight",
        part,
    )
    return page.offsets()


def test_in_context(long_topic: Page) -> None:
    page = long_topic
    page.show("&filter=line+15")
    page.until(lambda: 1599 in page.offsets())
    page.click(page.row(1550))
    page.until(lambda: page.text("messages").count("Show in context") == 1)
    page.click(".detail button")
    page.until(lambda: {1549, 1550, 1551} <= set(page.in_sight()))  # those before it come later
    offsets = page.offsets()
    assert offsets == list(range(offsets[0], offsets[-1] + 1))
    assert page.address()["around"] == "1550"
    assert page.text("context-text") == "Around offset 1,550, without the filter"
    page.click("#leave-context")
    page.until(lambda: page.offsets() and all("15" in text for text in page.texts()))
    assert page.address()["filter"] == "line 15"


def test_json_is_opened_as_it_was_sent(page: Page) -> None:
    message = '{"big": 12345678901234567890, "l": [1, {"deep": true}], "empty": {}, "a": 1, "a": 2}'
    page.push(page.topic, message, "[not json")
    page.show()
    page.until(lambda: len(page.rows()) == 2)
    page.press("k", "k", "o")
    page.until(lambda: "12345678901234567890" in opened(page))
    assert opened(page).splitlines() == [
        "{", '  "big": 12345678901234567890,', '  "l": [', "    1,", "    {", '      "deep": true',
        "    }", "  ],", '  "empty": {},', '  "a": 1,', '  "a": 2', "}",
    ]  # fmt: skip
    assert json.loads(opened(page)) == json.loads(message)
    assert page.run("return document.querySelector('.json-name').textContent") == '"big"'
    page.press("o", "j", Keys.ENTER)
    page.until(lambda: opened(page) == "[not json")


def opened(page: Page) -> str:
    return str(page.run("return document.querySelector('.detail pre')?.textContent ?? ''"))


def test_the_address_brings_back_what_was_shown(long_topic: Page) -> None:
    page = long_topic
    page.show()
    page.until(page.rows)
    page.filter("line 2")
    page.click("#regex")
    page.press("g")
    page.type("seek-offset", "2100" + Keys.ENTER)
    page.until(lambda: page.in_sight()[:1] == [2100])
    address = page.address()
    assert address == {"topic": page.topic, "filter": "line 2", "re": "1", "at": "2100"}
    page.browser.refresh()
    page.until(lambda: page.in_sight()[:1] == [2100])
    assert page.address() == address
    assert page.run("return document.getElementById('filter').value") == "line 2"
    page.run("document.getElementById('box').scrollTop += 500")
    page.until(lambda: page.address()["at"] != "2100")
    page.browser.refresh()
    page.until(lambda: page.in_sight()[:1] == [int(page.address()["at"])])
    assert 2110 < page.in_sight()[0] < 2200


def test_the_back_button(long_topic: Page) -> None:
    page = long_topic
    page.push("other", "something else")
    page.open("/")
    page.until(lambda: "other" in page.text("topic-list"))
    page.click(f'a[data-topic="{page.topic}"]')
    page.until(lambda: MESSAGES - 1 in page.in_sight())
    page.press("g")
    page.type("seek-offset", "100" + Keys.ENTER)
    page.until(lambda: page.in_sight()[:1] == [100])
    page.click('a[data-topic="other"]')
    page.until(lambda: page.texts() == ["something else"])
    page.browser.back()
    page.until(lambda: page.in_sight()[:1] == [100])
    page.browser.back()
    page.until(lambda: MESSAGES - 1 in page.in_sight() and page.is_live())
    page.browser.back()
    page.until(lambda: page.text("topic") == "")
    page.browser.forward()
    page.until(lambda: MESSAGES - 1 in page.in_sight())


def test_download_of_what_is_filtered(long_topic: Page, tmp_path: Path) -> None:
    page = long_topic
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.browser.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    page.show("&filter=line+29")
    page.until(page.rows)
    page.press("d")
    page.click("#download-form button")
    file = tmp_path / f"{page.topic}-0.log"
    wanted = [f"line {n}" for n in range(MESSAGES) if f"line {n}".startswith("line 29")]
    page.until(lambda: file.exists() and file.read_text().splitlines() == wanted)


def test_a_long_search_shows_its_progress_and_can_be_cancelled(page: Page) -> None:
    with Client(page.daemon.address) as client:
        for _ in range(12):
            client.push(page.topic, [b"x" * 20] * 200_000)
    page.show("&filter=nothing")
    page.until(lambda: "searched" in page.text("scan-text"))
    page.click("#scan-cancel")
    page.until(lambda: page.text("scan-text") == "")
    assert page.text("older") == "Search older messages"
    page.push(page.topic, "nothing but this")
    page.until(lambda: page.texts() == ["nothing but this"])
