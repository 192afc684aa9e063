"""The message box in a real browser: settings, queue, drafts, ideas, and long pastes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.steps import claimed, send, settled, short, until, use_scripted
from tests.web.chat_worker import StepWorker

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

BLOCK_STORAGE = """for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, {
  configurable: true, get() { throw new DOMException("blocked", "SecurityError"); }
})"""
NEXT_FRAME = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


def tokens_of_last(page: Page) -> str:
    return page.locator("article.bot .meta").last.inner_text()


def test_settings_go_with_the_first_message_and_change_the_next(
    open_page: Callable[..., Page], refusals: set[int]
) -> None:
    page = open_page()
    short(page, 3)
    send(page, "Tell me a story.")
    settled(page)
    assert "3 tokens" in tokens_of_last(page)
    page.click("#tune summary")
    assert page.input_value("#tune [name=max_tokens]") == "3"
    page.fill("#tune [name=temperature]", "hot")
    refusals.add(400)
    page.click("#tune >> text=Save")
    page.wait_for_selector("#tuning-refusal .err >> text=Temperature")
    assert page.input_value("#tune [name=max_tokens]") == "3"
    page.fill("#tune [name=temperature]", "0")
    page.fill("#tune [name=max_tokens]", "5")
    page.click("#tune >> text=Save")
    until(page, lambda: page.locator("#tune[open]").count() == 0)
    send(page, "Go on.")
    settled(page, 2)
    assert "5 tokens" in tokens_of_last(page)
    page.reload()
    assert page.input_value("#tune [name=temperature]") == "0.0"
    page.click("[data-shortcut=new]")
    page.wait_for_selector("#empty")
    assert page.input_value("#tune [name=max_tokens]") == ""


def test_second_message_waits_and_is_sent_by_itself_in_both_tabs(
    open_page: Callable[..., Page], scripted: StepWorker
) -> None:
    page = open_page()
    use_scripted(page)
    send(page, "Count to twenty.")
    page.wait_for_selector("article[data-generation]")
    page.wait_for_url("**/chat/*/")
    other = page.context.new_page()
    other.goto(page.url)
    send(page, "Then to thirty.")
    page.wait_for_selector("#queue li")
    assert page.input_value("#text") == ""
    assert page.locator("article.user").count() == 1
    send(page, "Not this one.")
    until(page, lambda: page.locator("#queue li").count() == 2)
    page.locator("#queue li").nth(1).locator("[aria-label='Remove from the queue']").click()
    until(page, lambda: page.locator("#queue li").count() == 1)
    for _ in range(2):
        answer = claimed(scripted)
        answer.write("One, two.")
        answer.finish()
    for tab in (page, other):
        settled(tab, 2)
        assert tab.locator("article.user").count() == 2
        assert tab.locator("#queue li").count() == 0
    until(page, lambda: "%" in page.inner_text("#gauge"))


def test_queue_waits_after_a_stop_until_it_is_sent_on(open_page: Callable[..., Page], scripted: StepWorker) -> None:
    page = open_page()
    use_scripted(page)
    send(page, "Count from one to ten thousand.")
    page.wait_for_selector("article[data-generation]")
    send(page, "First words")
    page.wait_for_selector("#queue li")
    page.click("#queue summary")
    page.fill("#queue textarea", "Better words")
    page.click("#queue >> text=Save")
    until(page, lambda: page.locator("#queue summary >> text=Better words").count() == 1)
    page.focus("#text")
    page.keyboard.press("Escape")
    settled(page)
    page.wait_for_selector("#queue >> text=The answer was stopped.")
    page.reload()
    page.click("#queue button >> text=Send")
    until(page, lambda: page.locator("article.user").count() == 2)
    assert page.locator("article.user").last.locator(".typed").inner_text() == "Better words"
    page.keyboard.press("Escape")
    settled(page, 2)


def test_page_works_where_the_browser_stores_nothing(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.add_init_script(BLOCK_STORAGE)
    page.reload()
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.fill("#text", "kept for this page")
    page.click(".keys")
    page.click("#keys-on")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+b")
    assert page.is_visible("#rail"), "the keys are off"
    page.click("[data-act=no-starters]")
    short(page)
    send(page, "a few words")
    settled(page)
    page.reload()
    assert page.input_value("#text") == ""
    page.keyboard.press("Control+b")
    assert not page.is_visible("#rail")


def test_idea_fills_the_box_and_ideas_stay_away_when_dismissed(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.locator("[data-act=starter]").first.click()
    assert page.input_value("#text").startswith("Explain")
    assert page.locator("article").count() == 0
    page.click("[data-act=no-starters]")
    page.reload()
    assert not page.is_visible(".starters")


def test_draft_is_each_chats_own_and_leaves_with_sending_and_signing_out(
    open_page: Callable[..., Page], refusals: set[int]
) -> None:
    page = open_page()
    short(page)
    send(page, "first words")
    settled(page)
    page.fill("#text", "for this chat")
    page.click("[data-shortcut=new]")
    page.wait_for_selector("#empty")
    assert page.input_value("#text") == ""
    again = page.context.new_page()
    again.goto("/")
    again.click("#rows .row a.t")
    until(again, lambda: again.input_value("#text") == "for this chat")
    again.goto("/accounts/logout/")
    again.click("main button[type=submit]")
    again.wait_for_url("**/accounts/login/**")
    refusals.add(401)
    page.wait_for_url("**/accounts/login/**")  # the other tab is told
    assert again.evaluate("Object.keys(localStorage).filter((name) => name.startsWith('draft:'))") == []


def test_paste_of_many_lines_is_quick_and_refused_with_numbers_and_kept(
    open_page: Callable[..., Page], refusals: set[int]
) -> None:
    page = open_page()
    text = "\n".join(f"line {number} of a long paste" for number in range(20_000))
    cpu = page.context.new_cdp_session(page)
    cpu.send("Performance.enable", {"timeDomain": "threadTicks"})  # other processes have the cores, too

    def busy_seconds() -> float:
        page.evaluate(NEXT_FRAME)
        metrics = {metric["name"]: metric["value"] for metric in cpu.send("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])

    page.evaluate(
        """(text) => {
            const holder = document.body.appendChild(document.createElement("textarea"));
            holder.value = text;
            holder.select();
            document.execCommand("copy");
            holder.remove();
        }""",
        text,
    )
    page.focus("#text")
    begun = busy_seconds()
    page.keyboard.press("Control+v")
    until(page, lambda: page.evaluate("document.getElementById('text').value.length") == len(text))
    assert busy_seconds() - begun < 1
    refusals.add(413)
    page.keyboard.press("Enter")
    page.wait_for_selector("#refusal .err >> text=at most 100,000 fit")
    assert page.input_value("#text") == text
