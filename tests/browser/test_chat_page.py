"""The chat page in a real browser, against a running site: sending, streaming, stopping, drafts, phones, the policy.

Needs a Chromium: without one the tests are skipped, but in CI they fail. Nothing here knows which model answers, only
that what was streamed is what is stored and what a reload shows. A console error fails the test.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route

from tests.browser.steps import send, settled, short, sign_in, sign_up, stored_answers, until
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


def test_first_visit_from_sign_up_to_a_retried_answer(open_page: Callable[..., Page], live_site: Fleet) -> None:
    """Sign up, send, reload in the middle, see the stored text to the byte, stop the next one, and have it retried."""
    page = open_page(storage_state={"cookies": [], "origins": []})
    sign_up(page)
    send(page, "Tell me a long story about a lighthouse keeper.")
    page.wait_for_selector("article[data-generation]")
    tail = page.locator("article[data-generation] .body")
    until(page, lambda: len(tail.inner_text()) > 60)
    seen = tail.inner_text()[:40]
    page.reload()
    assert page.locator("article.bot .body").inner_text().startswith(seen)
    settled(page)
    copied = page.evaluate("() => document.querySelector('article.bot template.source').content.textContent")
    assert [copied] == stored_answers(live_site, page.url)
    assert copied.startswith(seen[:20])

    send(page, "And another one, longer.")
    page.wait_for_selector("article[data-generation]")
    until(page, lambda: len(page.locator("article[data-generation] .body").inner_text()) > 20)
    page.click("article[data-generation] .stop")
    settled(page, 2)
    assert page.locator("article.bot.stopped").count() == 1
    until(page, lambda: all(w["free_slots"] == w["slots"] for w in live_site.workers()))

    page.click("article.bot.stopped >> text=Retry")
    page.wait_for_selector("article[data-generation]")
    settled(page, 2)
    page.wait_for_selector("article.bot >> text=2 / 2")
    assert page.locator("article.bot.stopped").count() == 0
    assert len(stored_answers(live_site, page.url)) == 3


def test_streamed_answer_is_the_one_a_reload_shows(open_page: Callable[..., Page]) -> None:
    page = open_page()
    short(page, 60)
    send(page, "Write two short paragraphs and a list.")
    page.wait_for_url("**/chat/*/")
    assert page.input_value("#text") == ""
    settled(page)
    streamed = page.inner_html("article.bot .body")
    page.reload()
    assert page.inner_html("article.bot .body") == streamed
    assert page.locator("article.bot .bar").count() == 1


def test_second_tab_and_reload_in_the_middle_end_alike(open_page: Callable[..., Page]) -> None:
    page = open_page()
    short(page, 60)
    send(page, "Tell me a long story about a lighthouse.")
    page.wait_for_selector("article.bot")
    other = page.context.new_page()
    other.goto(page.url)
    page.reload()
    settled(page)
    settled(other)
    assert page.inner_html("article.bot .body") == other.inner_html("article.bot .body")


def test_escape_stops_the_answer_and_the_next_message_is_taken(open_page: Callable[..., Page]) -> None:
    page = open_page()
    send(page, "Count from one to ten thousand.")
    page.wait_for_selector("article[data-generation]")
    page.keyboard.press("Escape")
    settled(page)
    send(page, "Thank you.")
    until(page, lambda: page.locator("article.user").count() == 2)


def test_enter_before_the_scripts_are_there_sends_the_form_as_it_is(open_page: Callable[..., Page]) -> None:
    page = open_page()
    held: list[Route] = []
    page.route("**/js/composer*", lambda route: held.append(route))
    page.goto("/", wait_until="commit")
    page.fill("#text", "early words")
    page.press("#text", "Shift+Enter")
    page.press("#text", "Enter")
    page.wait_for_selector("article.user >> text=early words")
    assert len(held) == 2, "a script of each page is still on its way"
    assert page.locator("article.user").count() == 1


def test_held_enter_sends_once(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.fill("#text", "once")
    page.focus("#text")
    for _ in range(10):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    page.wait_for_selector("article.bot")
    page.reload()
    assert page.locator("article.user").count() == 1
    assert page.locator("#rows .row").count() == 1


def test_enter_while_composing_a_character_sends_nothing(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.fill("#text", "にほん")
    for fields in ("isComposing: true", "keyCode: 229"):
        page.evaluate(
            "document.getElementById('text').dispatchEvent("
            f"new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true, {fields}}}))"
        )
    page.keyboard.press("Shift+Enter")
    assert page.input_value("#text") == "にほん\n"
    assert page.locator("article.user").count() == 0


def test_draft_survives_a_reload_and_an_expired_session(open_page: Callable[..., Page], refusals: set[int]) -> None:
    page = open_page()
    name = page.inner_text(".me .name")
    page.fill("#text", "my careful words")
    page.reload()
    assert page.input_value("#text") == "my careful words"
    page.context.clear_cookies(name="sessionid")
    refusals.add(401)
    page.press("#text", "Enter")
    page.wait_for_url("**/accounts/login/**")
    sign_in(page, name)
    page.wait_for_selector("#composer")
    assert page.input_value("#text") == "my careful words"


def test_conversation_can_be_renamed_and_deleted_in_the_list(open_page: Callable[..., Page]) -> None:
    page = open_page()
    send(page, "first title")
    page.click("article[data-generation] .stop")
    settled(page)
    until(page, lambda: page.locator("#rows .live").count() == 0)
    row = page.locator(".row.on")
    row.hover()
    row.locator("summary").click()
    row.locator("input[name=title]").fill("<i>second</i> title")
    row.locator("text=Rename").click()
    until(page, lambda: page.inner_text("#heading") == "<i>second</i> title")
    until(page, lambda: row.locator("a.t").all_inner_texts() == ["<i>second</i> title"])
    page.on("dialog", lambda dialog: dialog.accept())
    row.hover()
    row.locator("summary").click()
    row.get_by_role("button", name="Delete").click()
    page.wait_for_selector("#empty")
    assert page.locator("#rows .row").count() == 0


def low(page: Page, place: str) -> list[str]:
    """What in `place` is pressed and too low for a finger."""
    heights = page.evaluate(
        "(place) => [...document.querySelectorAll(`${place} :is(button, summary, .row a, .lists a)`)]"
        ".filter((it) => it.checkVisibility()).map((it) => [it.outerHTML, it.getBoundingClientRect().height])",
        place,
    )
    return [html for html, height in heights if height < 40]


def test_phone_has_a_drawer_and_nothing_runs_over_its_edge(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert not page.is_visible("#rail")
    page.click(".burger")
    page.wait_for_selector("#rail.open")
    assert low(page, "#rail") == []
    page.click("#rail .close")
    until(page, lambda: not page.is_visible("#rail"))
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_input_files("#file", [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"words"}])
    page.wait_for_selector("#files .chip")
    assert low(page, "main") == []
    page.click("#tune summary")
    assert low(page, "#tune") == []


def test_theme_is_kept(open_page: Callable[..., Page]) -> None:
    page = open_page(color_scheme="light")
    page.click(".menu.up summary")
    page.click(".sheet [data-act=theme]")
    page.click(".sheet [data-act=theme]")
    page.reload()
    assert page.get_attribute("html", "data-theme") == "dark"


def test_page_works_without_a_script(open_page: Callable[..., Page]) -> None:
    page = open_page(java_script_enabled=False)
    page.fill("#text", "no script here")
    page.click(".send")
    page.wait_for_url("**/chat/*/")
    assert page.inner_text("article.user .typed") == "no script here"


def test_leaving_a_conversation_closes_its_stream(open_page: Callable[..., Page]) -> None:
    page = open_page()
    streams: list[str] = []
    ended: list[str] = []
    page.on("request", lambda r: streams.append(r.url) if "/events" in r.url else None)
    page.on("requestfinished", lambda r: ended.append(r.url) if "/events" in r.url else None)
    page.on("requestfailed", lambda r: ended.append(r.url) if "/events" in r.url else None)
    send(page, "Tell me everything about the sea.")
    until(page, lambda: len(streams) == 1)
    page.click("[data-shortcut=new]")
    page.wait_for_selector("#empty")
    until(page, lambda: len(ended) == 1)
    assert len(streams) == 1
