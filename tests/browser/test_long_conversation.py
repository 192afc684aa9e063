"""A conversation of a thousand messages: it opens at its end, loads upward, and typing in it stays light."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.steps import sign_up, until
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

NUM_MESSAGES = 1_000
SHOWN = 30
FILL = """
from chatsite.accounts.models import User
from chatsite.chat.actions import quote
from chatsite.chat.models import Conversation, Message
user = User.objects.get(username={name!r})
conversation = Conversation.objects.create(owner=user, title="Long")
parent, rows = None, []
for number in range({count}):
    role = "assistant" if number % 2 else "user"
    text = f"{{number}} " + (quote.document() if number % 2 else "Tell me more.")
    parent = Message(conversation=conversation, parent=parent, role=role, content=text)
    rows.append(parent)
Message.objects.bulk_create(rows, batch_size=500)
conversation.leaf = parent
conversation.save()
print(conversation.pk)
"""
FIRST_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
WATCH_KEYS = """() => {
  window.delays = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (entry.name === "keydown") window.delays.push(entry.duration);
  }).observe({type: "event", durationThreshold: 16, buffered: true});
}"""


@pytest.fixture
def long_chat(open_page: Callable[..., Page], live_site: Fleet) -> tuple[Page, str]:
    """A page of a new person, and the address of their long conversation."""
    page = open_page(storage_state={"cookies": [], "origins": []})
    name = sign_up(page)
    made = live_site.manage("shell", "-v", "0", "-c", FILL.format(name=name, count=NUM_MESSAGES))
    return page, f"/chat/{made.split()[-1]}/"


def test_it_opens_at_its_end_and_loads_upward_without_a_jump(long_chat: tuple[Page, str]) -> None:
    page, address = long_chat
    page.goto(address)
    articles = page.locator("#turns > article")
    assert articles.count() == SHOWN
    assert re.match(rf"The model said\s+{NUM_MESSAGES - 1}\b", articles.last.inner_text())
    first = articles.first
    id_ = first.get_attribute("id")
    page.locator("#turns .earlier").first.scroll_into_view_if_needed()
    top = page.locator(f"#{id_}").bounding_box()
    page.locator("#turns .earlier").first.click()
    until(page, lambda: articles.count() == 2 * SHOWN)
    moved = page.locator(f"#{id_}").bounding_box()
    assert top is not None
    assert moved is not None
    assert abs(moved["y"] - top["y"]) < 40, "the reader's place moved"


@pytest.mark.slow
def test_it_paints_within_a_second_and_keys_are_answered_while_an_answer_streams(long_chat: tuple[Page, str]) -> None:
    page, address = long_chat
    page.goto(address)  # whatever is cached, is now
    page.goto(address)
    until(page, lambda: page.evaluate(FIRST_PAINT) is not None)
    assert page.evaluate(FIRST_PAINT) < 1_000
    page.fill("#text", "/quote")
    page.press("#text", "Enter")
    page.wait_for_selector("article[data-generation]")
    page.evaluate(WATCH_KEYS)
    page.focus("#text")
    for letter in "the quick brown fox jumps over the lazy dog " * 3:
        page.keyboard.press("Space" if letter == " " else letter)
        page.wait_for_timeout(20)
    assert page.locator("article[data-generation]").count() == 1, "the answer had ended before all was typed"
    delays = sorted(page.evaluate("() => window.delays"))  # those of 16 ms and more
    slow = [delay for delay in delays if delay >= 50]
    assert len(slow) <= 1, delays
