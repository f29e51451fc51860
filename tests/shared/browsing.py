"""Chromium for tests: pages that fail a test on console errors, refused styles or scripts, and foreign requests."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from shared.commands import HANG

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HERE = ("", "127.0.0.1", "localhost")  # a file has no host
SCHEMES = ("data", "blob", "about")


@dataclass
class Watched:
    """A page, and what it should not have done."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        self.page.on("request", self._request)
        self.page.on("requestfailed", lambda request: self._failed(request))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") or "Content Security Policy" in message.text:
            self.complaints.append(f"console {message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        address = urlsplit(request.url)
        if address.scheme not in SCHEMES and address.hostname not in (None, *HERE):
            self.complaints.append(f"request to another host: {request.url}")

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page went elsewhere while it was loading
            self.complaints.append(f"request failed: {request.url}: {request.failure}")


def until(page: Any, expression: str, seconds: float = HANG) -> None:
    """Wait until a JavaScript expression holds.

    Not by `page.wait_for_function`: it evaluates text inside the page, which a content security policy forbids.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"after {seconds:g} seconds it still does not hold: {expression}"
        page.wait_for_timeout(50)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for the tests of a file; they are skipped where it is missing.

    Not for the whole session: while Playwright runs, its event loop is in the way of tests that start their own.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: expected one of {', '.join(NAMES)} on the path")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages: `open_page(url, **settings of a context)`; at the end none may have complained."""
    opened: list[tuple[Any, Watched]] = []

    def open_one(url: str, **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        context.set_default_timeout(1000 * HANG)
        watched = Watched(context.new_page())
        opened.append((context, watched))
        watched.watch()
        watched.page.goto(url)
        return watched.page

    yield open_one
    complaints = [complaint for _, watched in opened for complaint in watched.complaints]
    for context, _ in opened:
        context.close()
    assert not complaints, "\n".join(complaints)
