"""Whatever happens to tabs, network and web node in mid-answer, its text ends up on every page to the byte.

A schedule is a seed: reloads, second tabs, hidden tabs, cut networks and killed web nodes in random order, at random
times, while the site recites its test document. The answer in each tab must then be the stored one, and rendered as a
page that is opened afresh renders it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.browser.steps import settled, sign_up, stored_answers, until
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(1200)]

HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  Object.defineProperty(document, "visibilityState", {configurable: true, get: () => hidden ? "hidden" : "visible"});
  document.dispatchEvent(new Event("visibilitychange", {bubbles: true}));
}"""
SOURCE = "() => [...document.querySelectorAll('article.bot template.source')].at(-1)?.content.textContent"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """A site of its own: its web node gets killed."""
    with Fleet() as running:
        yield running


@pytest.fixture
def context(browser: Browser, fleet: Fleet) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=fleet.url)
    context.set_default_timeout(30_000)
    yield context
    context.close()


def recited(page: Page) -> None:
    """Begin a conversation in which the test document is recited, and open it."""
    token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
    answer = page.request.post(
        "/chat/quote/", form={"csrfmiddlewaretoken": token}, headers={"Referer": page.url}, max_redirects=0
    )
    assert answer.status == 302, answer.status
    page.goto(answer.headers["location"])
    page.wait_for_selector("article.bot")


class Schedule:
    def __init__(self, seed: int, fleet: Fleet, context: BrowserContext) -> None:
        self.random = random.Random(seed)
        self.fleet = fleet
        self.context = context
        self.said: list[str] = []
        self.tabs = [context.new_page()]
        self.faults: list[str] = []
        self._mind(self.tabs[0])

    def run(self) -> None:
        kinds: list[Callable[[], None]] = [self.reload, self.second_tab, self.hide, self.cut, self.restart]
        plan = [self.random.choice(kinds) for _ in range(self.random.randrange(3, 7))]
        for act in plan:
            self.pause(50, 1200)
            self.said.append(act.__name__)
            act()

    def pause(self, low: int, high: int) -> None:
        self.tabs[0].wait_for_timeout(self.random.randrange(low, high))

    def reload(self) -> None:
        self.random.choice(self.tabs).reload()

    def second_tab(self) -> None:
        if len(self.tabs) < 4:
            tab = self.context.new_page()
            self._mind(tab)
            tab.goto(self.tabs[0].url)
            self.tabs.append(tab)

    def hide(self) -> None:
        tab = self.random.choice(self.tabs)
        tab.evaluate(HIDE, True)
        self.pause(100, 1500)
        tab.evaluate(HIDE, False)

    def cut(self) -> None:
        self.context.set_offline(True)
        self.pause(100, 2500)
        self.context.set_offline(False)

    def restart(self) -> None:
        self.fleet.kill("web")
        self.pause(0, 800)
        self.fleet.start_web()
        until(self.tabs[0], self.fleet.is_ready, 60)

    def _mind(self, tab: Page) -> None:
        # htmx rejects the promise of a request that could not be sent with nothing, and nobody holds it.
        tab.on("pageerror", lambda error: self.faults.append(str(error)) if str(error) != "undefined" else None)


SHORT, LONG = range(3), range(50)


@pytest.mark.parametrize(
    "seed", [*SHORT, *(pytest.param(seed, marks=pytest.mark.slow) for seed in LONG if seed not in SHORT)]
)
def test_every_tab_ends_with_the_stored_text(seed: int, fleet: Fleet, context: BrowserContext) -> None:
    schedule = Schedule(seed, fleet, context)
    first = schedule.tabs[0]
    sign_up(first)
    recited(first)
    schedule.run()
    for tab in schedule.tabs:
        settled(tab)
    (stored,) = stored_answers(fleet, first.url)
    assert stored
    fresh = context.new_page()
    fresh.goto(first.url)
    wanted = fresh.inner_html("article.bot .body")
    for tab in schedule.tabs:
        assert tab.evaluate(SOURCE) == stored, schedule.said
        assert tab.inner_html("article.bot .body") == wanted, schedule.said
        assert tab.locator("article.bot").count() == 1
    assert schedule.faults == []
