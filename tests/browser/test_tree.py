"""What a reader does to single messages: ask differently, ask again, change, delete, fork, and look at other versions.

Conversations are put into the database; only what has to be streamed is written by a model.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser import put
from tests.browser.steps import send, settled, stored_answers, until
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

TEXT = "A *paragraph* of an answer that is long enough to fill some of the page.\n\n" * 6


def stored(site: Fleet, page: Page, *contents: str) -> list[uuid.UUID]:
    """A settled conversation of questions and answers in turn, opened on the page; the ids of its messages."""
    talk = put.conversation(site, page, *contents)
    page.goto(talk.address)
    return talk.message_ids


def top_of(page: Page, selector: str) -> float:
    box = page.locator(selector).bounding_box()
    assert box
    return box["y"]


def test_an_edited_question_branches_and_the_arrows_lead_back_and_forth(
    open_page: Callable[..., Page], live_site: Fleet
) -> None:
    page = open_page()
    stored(live_site, page, "Say hello.", "Hello there.")
    page.hover("article.user")
    page.click("article.user [data-act=edit]")
    box = page.locator("article.user .edit textarea")
    expect(box).to_be_focused()
    assert box.input_value() == "Say hello."
    assert not page.is_visible("article.user .typed")
    box.press("Escape")
    expect(page.locator("article.user [data-act=edit]")).to_be_focused()
    assert page.is_visible("article.user .typed")
    page.keyboard.press("Enter")
    until(page, lambda: box.evaluate("(box) => box.selectionStart") == len("Say hello."))  # ready for typing
    box.fill("Say goodbye.")
    box.press("Control+Enter")
    page.wait_for_selector("article.user >> text=2 / 2")
    settled(page)
    assert page.inner_text("article.user .typed") == "Say goodbye."
    page.get_by_label("Version before").click()
    page.wait_for_selector("article.bot >> text=Hello there.")
    expect(page.get_by_label("Version after")).to_be_focused()
    page.get_by_label("Version after").click()
    until(page, lambda: page.inner_text("article.user .typed") == "Say goodbye.")


def test_another_answer_has_its_arrows_as_soon_as_it_is_there(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    stored(live_site, page, "Say hello.", "Hello there.")
    page.hover("article.bot")
    page.get_by_label("Retry in another way").click()
    expect(page.locator(".choices button").first).to_be_focused()
    ways = page.locator(".choices button").all_inner_texts()
    assert ways[:3] == ["In the same way", "Shorter", "With thinking"]
    page.click("text=Shorter")
    page.wait_for_selector("article.bot[data-generation]")
    assert page.locator("article.bot .bar").count() == 0
    page.keyboard.press("Escape")
    settled(page)
    assert page.inner_text("article.bot .sib span") == "2 / 2"
    page.get_by_label("Version before").click()
    page.wait_for_selector("article.bot >> text=Hello there.")
    assert page.inner_text("article.user .typed") == "Say hello."


def test_a_change_of_version_keeps_the_readers_place(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page(viewport={"width": 1000, "height": 700})
    ids = stored(live_site, page, "one", TEXT, "two", TEXT, "three", TEXT, "four", TEXT)
    put.version(live_site, ids[3], "another")
    page.reload()
    page.locator(f"#m-{ids[2]}").scroll_into_view_if_needed()
    page.locator(f"#m-{ids[3]}").get_by_label("Version after").scroll_into_view_if_needed()
    page.locator(f"#m-{ids[3]}").get_by_label("Version after").click()
    page.wait_for_selector("article.bot >> text=another")
    back = page.get_by_label("Version before")
    back.scroll_into_view_if_needed()
    before = top_of(page, f"#m-{ids[2]}")
    back.click()
    page.wait_for_selector(f"#m-{ids[7]}")
    assert abs(top_of(page, f"#m-{ids[2]}") - before) < 2


def test_an_answer_is_edited_in_place(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    ids = stored(live_site, page, "Say hello.", "Hello **there**.", "And?", "Nothing.")
    page.hover(f"#m-{ids[1]}")
    page.click(f"#m-{ids[1]} .bar >> text=Edit")
    box = page.locator(".edit textarea")
    expect(box).to_be_focused()
    box.fill("Good *evening*.")
    page.click(".edit >> text=Save")
    page.wait_for_selector(f"#m-{ids[1]} em >> text=evening")
    assert "edited" in page.inner_text(f"#m-{ids[1]} .note")
    assert page.locator("article").count() == 4
    assert stored_answers(live_site, page.url) == ["Good *evening*.", "Nothing."]


def test_deleting_says_how_many_go(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    ids = stored(live_site, page, "one", "1", "two", "2", "three", "3")
    page.hover(f"#m-{ids[2]}")
    page.locator(f"#m-{ids[2]}").get_by_label("More, and how").click()
    page.click("text=Delete…")
    page.wait_for_selector(f"#m-{ids[2]} .panel >> text=Delete 4 messages")
    page.keyboard.press("Escape")
    until(page, lambda: page.inner_text(f"#m-{ids[2]} .panel") == "")
    page.locator(f"#m-{ids[2]}").get_by_label("More, and how").click()
    page.click("text=Delete…")
    page.click(f"#m-{ids[2]} .panel button.danger")
    until(page, lambda: page.locator("article").count() == 2)
    page.reload()
    assert page.locator("article").count() == 2


def test_a_fork_is_a_conversation_of_its_own(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    ids = stored(live_site, page, "one", "1", "two", "2")
    old = page.url
    page.hover(f"#m-{ids[1]}")
    page.locator(f"#m-{ids[1]}").get_by_label("More, and how").click()
    page.click("text=Fork from here")
    until(page, lambda: page.url != old)
    assert page.inner_text("#heading") == "Fork of Stars"
    assert page.locator("article").count() == 2
    until(page, lambda: page.locator("#rows .row").count() == 2)


def test_stopping_is_said_until_it_has_stopped_and_the_answer_can_go_on(open_page: Callable[..., Page]) -> None:
    page = open_page()
    send(page, "Count from one to ten thousand.")
    until(page, lambda: len(page.locator("article[data-generation] .body").all_inner_texts()) == 1)
    until(page, lambda: len(page.inner_text("article.bot .body")) > 10)
    page.click("article[data-generation] .stop")
    settled(page)
    page.click("article.bot.stopped >> text=Continue")
    page.wait_for_selector("article[data-generation]")
    page.keyboard.press("Escape")
    settled(page)
    assert page.inner_text("article.bot .sib span") == "2 / 2"


def test_messages_can_be_edited_and_deleted_without_a_script(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page(java_script_enabled=False)
    ids = stored(live_site, page, "one", "1", "two", "2")
    page.click(f"#m-{ids[1]} .bar >> text=Edit")
    page.fill("main [name=text]", "uno")
    page.click(".edit >> text=Save")
    assert page.inner_text(f"#m-{ids[1]} .body") == "uno"
    assert page.is_visible(f"#m-{ids[2]} .bar >> text=Edit")
    page.click(f"#m-{ids[2]} .bar >> text=⋯")
    page.click("text=Delete…")
    page.click("main button.danger")
    assert page.locator("article").count() == 2
