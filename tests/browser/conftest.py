"""A browser and pages of new people on the running site; what all browser tests do there.

Needs a Chromium: without one the tests are skipped, but in CI they fail. A console error fails the test.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from inference import config
from tests.browser.steps import join
from tests.fleet import Fleet
from tests.web.chat_worker import StepWorker

ARGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
STATUS = re.compile(r"responded with a status of (\d{3})")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def scripted(live_site: Fleet) -> Iterator[StepWorker]:
    """A worker beside the real one, with a model whose every step the test makes: nothing depends on how fast one is.

    What it has claimed must end within the lease of two seconds; what it has not, waits as long as the test likes.
    """
    with redis.Redis.from_url(live_site.env["REDIS_URL"]) as connection:
        worker = StepWorker(connection, config.load(live_site.env), "scripted-1")
        worker.announce()
        yield worker
        worker.registry.withdraw(worker.name)


@pytest.fixture
def refusals() -> set[int]:
    """A test adds each status with which the site will have refused something by its end. Any other is a complaint."""
    return set()


@pytest.fixture
def open_page(browser: Browser, live_site: Fleet, refusals: set[int]) -> Iterator[Callable[..., Page]]:
    """Opens a page of a new person, or with `storage_state` of a known one. At the end no page may have complained."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_one(**options: Any) -> Page:
        context = browser.new_context(base_url=live_site.url, **options)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        live_site.forget_sign_ups()
        if "storage_state" not in options:
            join(page)
        return page

    yield open_one
    for context in contexts:
        context.close()
    for told in [text for text in complaints if text.startswith("htmx:sendAbort, ")]:
        # A request that a newer one replaced, or that was on its way as its page was closed, is no fault.
        complaints.remove(told)
        complaints.remove(told.replace("sendAbort", "afterRequest"))
    statuses = {text: int(found[1]) for text in complaints if (found := STATUS.search(text))}
    assert [text for text in complaints if statuses.get(text) not in refusals] == []
    assert refusals <= set(statuses.values()), "not refused"
