"""The page as a person uses it: what can be seen, clicked and typed; and what must always hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from logd import Client
from tests.support.daemon import HANG_S, ROOT, Daemon

PICTURES = ROOT / "build" / "screenshots"
LOOK_AGAIN_S = 0.02
T = TypeVar("T")
_numbers = count(1)

_ROWS = """
    return [...document.querySelectorAll("#messages .row")].map((row) =>
        [Number(row.dataset.offset), row.querySelector(".text").textContent]);
"""
_IN_SIGHT = """
    const box = document.getElementById("box").getBoundingClientRect();
    return [...document.querySelectorAll("#messages .row")].filter((row) => {
        const {top, bottom} = row.getBoundingClientRect();
        return bottom > box.top + 4 && top < box.bottom - 4;
    }).map((row) => Number(row.dataset.offset));
"""


class Row(NamedTuple):
    offset: int
    text: str


class Page:
    def __init__(self, browser: webdriver.Chrome, daemon: Daemon) -> None:
        self.browser = browser
        self.daemon = daemon
        self.topic = f"app{next(_numbers)}"  # of this test alone
        self.allowed: tuple[str, ...] = ()  # parts of errors that the test means to provoke
        self.log("browser")
        self.log("performance")

    # -- the daemon -----------------------------------------------------------------------------

    def push(self, topic: str, *messages: str | bytes) -> None:
        with Client(self.daemon.address) as client:
            client.push(topic, [m.encode() if isinstance(m, str) else m for m in messages])

    def write(self, topic: str, message: str) -> None:
        """As somebody does who types it."""
        command = [sys.executable, "-m", "cli", "write", topic, message, "--quiet"]
        subprocess.run([*command, "--host", self.daemon.address], cwd=ROOT, check=True)

    # -- looking --------------------------------------------------------------------------------

    def open(self, address: str = "/") -> None:
        self.browser.get(f"http://{self.daemon.http}{address}")

    def show(self, more: str = "") -> None:
        """The test's own topic; `more` is the rest of the address."""
        self.open(f"/?topic={self.topic}{more}")

    def run(self, script: str, *values: Any) -> Any:
        return self.browser.execute_script(script, *values)

    def until(self, what: Callable[[], T]) -> T:
        """Wait until this is true; its value."""
        try:
            return WebDriverWait(self.browser, HANG_S, LOOK_AGAIN_S).until(lambda _: what())
        except TimeoutException:
            raise AssertionError(
                f"{self.browser.current_url} went on to show\n{self.said()}"
            ) from None

    def rows(self) -> list[Row]:
        return [Row(*row) for row in self.run(_ROWS)]

    def offsets(self) -> list[int]:
        return [row.offset for row in self.rows()]

    def texts(self) -> list[str]:
        return [row.text for row in self.rows()]

    def in_sight(self) -> list[int]:
        """The offsets of the rows that can be seen."""
        found: list[int] = self.run(_IN_SIGHT)
        return found

    def text(self, id_: str) -> str:
        """What is written there; nothing if it is hidden."""
        script = """
            const element = document.getElementById(arguments[0]);
            return element.checkVisibility() ? element.innerText : "";
        """
        return str(self.run(script, id_))

    def said(self) -> str:
        return str(self.run("return document.body.innerText.slice(0, 3000)"))

    def address(self) -> dict[str, str]:
        query = parse_qs(urlsplit(self.browser.current_url).query)
        return {name: values[0] for name, values in query.items()}

    def is_live(self) -> bool:
        return "Pause" in self.text("follow")

    # -- doing ----------------------------------------------------------------------------------

    def click(self, selector: str) -> None:
        self.browser.find_element("css selector", selector).click()

    def type(self, id_: str, text: str) -> None:
        field = self.browser.find_element("id", id_)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    def submit(self, id_: str, value: str) -> None:
        """Fill a field at once, as a picker of dates does, and send its form."""
        script = """
            const field = document.getElementById(arguments[0]);
            field.value = arguments[1];
            field.form.requestSubmit();
        """
        self.run(script, id_, value)

    def filter(self, text: str) -> None:
        self.type("filter", text)
        self.browser.find_element("id", "filter").send_keys(Keys.ENTER)

    def row(self, offset: int) -> str:
        return f'.row[data-offset="{offset}"]'

    # -- what holds for every page --------------------------------------------------------------

    def check_hosts(self) -> None:
        """Nobody but the daemon was asked for anything."""
        urls = [url for url in self._requests() if not url.startswith("data:")]
        asked = {urlsplit(url).netloc.rpartition("@")[2] for url in urls}
        assert asked <= {self.daemon.http}, asked

    def _requests(self) -> Iterable[str]:
        for entry in self.log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url: str = message["params"]["request"]["url"]
                if url.startswith(("http", "ws", "data:")):
                    yield url

    def log(self, name: str) -> list[dict[str, Any]]:
        """What the browser noted since the last look."""
        found: list[dict[str, Any]] = self.browser.get_log(name)  # type: ignore[no-untyped-call]
        return found

    def check_errors(self) -> None:
        """Neither scripts nor the content security policy had anything to say."""
        log = self.log("browser")
        said = [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]
        bad = [text for text in said if not any(part in text for part in self.allowed)]
        assert not bad, bad

    # -- measuring ------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Of this tab, after a collection of garbage."""
        self.browser.execute_cdp_cmd("Performance.enable", {})
        self.browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        found = self.browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return {one["name"]: one["value"] for one in found}

    def picture(self, name: str) -> Path:
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        assert self.browser.save_screenshot(str(path))
        return path
