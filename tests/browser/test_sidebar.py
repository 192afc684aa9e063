"""The list of conversations in a real browser: menus, choosing several, marks in another window, search that jumps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser import put
from tests.browser.steps import send, until
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


@pytest.fixture
def fill(live_site: Fleet) -> Callable[..., list[str]]:
    """Puts settled conversations there: two answers each, the second shown; returns the ids of the first ones."""

    def fill_for(page: Page, *titles: str) -> list[str]:
        first_answers = []
        for title in titles:
            straw = "\n\n".join(["Straw."] * 60 + [f"The needle of {title}."])
            talk = put.conversation(live_site, page, f"Where is the {title}?", straw, title=title, is_title_own=True)
            put.version(live_site, talk.message_ids[1], "Nowhere at all.", is_shown=True)
            first_answers.append(str(talk.message_ids[1]))
        page.reload()
        return first_answers

    return fill_for


def titles(page: Page) -> list[str]:
    return page.locator("#rows .row a.t").all_inner_texts()


def do(page: Page, title: str, verb: str) -> None:
    row = page.locator(".row", has_text=title)
    row.hover()
    row.locator("summary").click()
    row.get_by_role("button", name=verb, exact=True).click()


def test_menu_pins_archives_and_tags(open_page: Callable[..., Page], fill: Callable[..., list[str]]) -> None:
    page = open_page()
    fill(page, "alpha", "beta", "gamma")
    assert titles(page) == ["gamma", "beta", "alpha"]
    do(page, "alpha", "Pin")
    until(page, lambda: titles(page) == ["alpha", "gamma", "beta"])
    assert page.locator("#rows h2").all_inner_texts() == ["PINNED", "TODAY"]
    do(page, "gamma", "Archive")
    until(page, lambda: titles(page) == ["alpha", "beta"])
    row = page.locator(".row", has_text="beta")
    row.hover()
    row.locator("summary").click()
    row.get_by_label("Tag", exact=True).fill("work")
    page.keyboard.press("Enter")
    page.click(".lists >> text=work")
    until(page, lambda: titles(page) == ["beta"])
    page.click(".lists >> text=Archive")
    until(page, lambda: titles(page) == ["gamma"])
    do(page, "gamma", "Bring back from the archive")
    until(page, lambda: titles(page) == [])
    page.click(".lists >> text=All")
    until(page, lambda: titles(page) == ["alpha", "gamma", "beta"])


def test_several_are_deleted_at_once_after_saying_how_many(
    open_page: Callable[..., Page], fill: Callable[..., list[str]]
) -> None:
    page = open_page()
    fill(page, "alpha", "beta", "gamma")
    assert not page.is_visible(".pick >> nth=0")
    page.check("#selecting")
    page.check("[aria-label='Choose alpha']")
    page.check("[aria-label='Choose gamma']")
    page.click("#bulk >> text=Delete")
    page.wait_for_selector("text=Delete 2 conversations for good?")
    page.click("#bulk-ask >> text=Cancel")
    assert len(titles(page)) == 3
    page.click("#bulk >> text=Delete")
    page.click("#bulk-ask >> role=button[name=Delete]")
    until(page, lambda: titles(page) == ["beta"])
    assert not page.is_checked("#selecting")


def test_search_jumps_into_another_branch(open_page: Callable[..., Page], fill: Callable[..., list[str]]) -> None:
    page = open_page()
    first_answers = fill(page, "alpha", "beta")
    page.click("text=alpha")
    page.wait_for_selector("text=Nowhere at all.")
    page.fill("#search", "needle bet")
    page.wait_for_selector("#hits")
    assert page.locator("#hits mark").all_inner_texts() == ["bet", "needle", "bet"]
    page.press("#search", "ArrowDown")
    page.press("#search", "Enter")
    found = page.locator(f"#m-{first_answers[1]}")
    found.wait_for()
    until(page, lambda: "hit" in (found.get_attribute("class") or ""))
    assert found.locator("text=The needle of beta.").is_visible()
    assert page.inner_text("#heading") == "beta"
    page.press("#search", "Escape")
    assert page.locator("#hits").count() == 0
    page.reload()
    found.wait_for()
    page.fill("#search", "zzz")
    page.wait_for_selector("text=Nothing was found.")


def test_marks_appear_in_a_second_window(open_page: Callable[..., Page]) -> None:
    """Still writing while it is, unread once it has ended unseen, and gone when it is opened."""
    page = open_page()
    other = page.context.new_page()
    other.goto("/")
    send(page, "Tell me a story about a lighthouse keeper.")
    page.wait_for_selector("article[data-generation]")
    other.wait_for_selector("#rows .live")
    generation = page.get_attribute("article[data-generation]", "data-generation")
    page.click("text=New chat")
    page.wait_for_selector("#empty")
    page.evaluate("id => void htmx.ajax('POST', `/chat/generations/${id}/stop/`, {swap: 'none'})", generation)
    other.wait_for_selector("#rows .unread")
    assert other.locator("#rows .live").count() == 0
    page.wait_for_selector("#rows .unread")
    page.click("#rows .row a.t")
    until(page, lambda: page.locator("#rows .unread").count() == 0)
    until(other, lambda: other.locator("#rows .unread").count() == 0)
    send(page, "And now?")
    other.wait_for_selector("#rows .live")
    page.wait_for_selector("article[data-generation] .stop")
    page.click("article[data-generation] .stop")
    until(other, lambda: other.locator("#rows .live, #rows .unread").count() == 0)  # it ended in sight of its reader
