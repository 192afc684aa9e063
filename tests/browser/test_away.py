"""Looking elsewhere: an answer that ends meanwhile is told, and a site that is away has a page of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.steps import send, settled, until

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange", {bubbles: true}));
}"""
SHOWN = """async () => (await (await navigator.serviceWorker.ready).getNotifications())
  .map(({title, body}) => [title, body])"""


def test_page_that_cannot_be_loaded_says_so_and_comes_back(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.fill("#text", "a draft")
    page.reload()  # from here on the worker answers for the page
    until(page, lambda: page.evaluate("Boolean(navigator.serviceWorker.controller)"))
    page.context.set_offline(True)
    page.goto("/prompts/")
    assert page.inner_text("h1") == "The site cannot be reached"
    assert page.evaluate("getComputedStyle(document.querySelector('main')).borderRadius") == "20px", "has its looks"
    page.context.set_offline(False)
    page.goto("/")
    assert page.input_value("#text") == "a draft"
    kept = page.evaluate(
        "async () => { const kept = await caches.open((await caches.keys())[0]);"
        " return (await kept.keys()).map((each) => new URL(each.url).pathname); }"
    )
    assert len(kept) == 4, "the page and what it looks like, nobody's chat"
    assert all(path == "/offline/" or path.startswith("/static/") for path in kept)


def test_long_answer_that_ends_unseen_is_notified_where_that_was_asked_for(open_page: Callable[..., Page]) -> None:
    page = open_page(permissions=["notifications"])
    page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.clock.install()
    page.click(".menu.up summary")
    assert page.get_attribute("[data-act=notify]", "aria-pressed") == "false"
    page.click("[data-act=notify]")
    until(page, lambda: page.get_attribute("[data-act=notify]", "aria-pressed") == "true")
    page.keyboard.press("Escape")
    title = page.title()

    send(page, "My secret: tell me about it.")
    page.wait_for_selector("article[data-generation]")
    page.clock.fast_forward(20_000)
    page.evaluate(HIDE, True)
    settled(page)
    until(page, lambda: page.evaluate(SHOWN) == [["SmolFleet", "Answer ready"]])
    assert page.title().startswith("● ")
    page.evaluate(HIDE, False)
    assert not page.title().startswith("● ")
    assert title


def test_short_answer_marks_the_tab_alone(open_page: Callable[..., Page]) -> None:
    page = open_page(permissions=["notifications"])
    page.click(".menu.up summary")
    page.click("[data-act=notify]")
    page.keyboard.press("Escape")
    page.evaluate(HIDE, True)
    send(page, "Hi")
    until(page, lambda: page.title().startswith("● "), 60)
    assert page.evaluate(SHOWN) == []
