"""Debian's Chromium without a window, a daemon, and the page in it.

One browser and one daemon serve all tests; each has a tab and a topic of its own. Whatever a test
did, the page must have asked nobody but the daemon, and the browser must have reported no error but
those the test meant to provoke.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.integration.browser.page import Page
from tests.support.daemon import HANG_S, Daemon, lasting_address, running

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-precise-memory-info", "--window-size=1280,800", "--force-color-profile=srgb",
)  # fmt: skip


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("there is no chromium with its driver here; `make browser-packages` gets them")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    started.set_script_timeout(3 * HANG_S)  # of axe, which looks at each row
    yield started
    started.quit()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("shared"), "--http-host", "127.0.0.1:0") as started:
        yield started


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Daemon]:
    """For tests that stop it, or need one that is empty: these override `daemon` with it."""
    with running(tmp_path, "--http-host", lasting_address()) as started:
        yield started


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    return shared


@pytest.fixture
def page(chromium: webdriver.Chrome, daemon: Daemon) -> Iterator[Page]:
    before = chromium.current_window_handle
    chromium.switch_to.new_window("tab")
    page = Page(chromium, daemon)
    yield page
    try:
        page.check_hosts()
        page.check_errors()
        assert "Traceback" not in page.daemon.log
    finally:
        chromium.close()
        chromium.switch_to.window(before)
