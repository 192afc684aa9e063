"""The "/" menu of the message box and the keys, in a real browser: each command does what its line says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.steps import send, settled, short, until

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

PRESS_AT_ONCE = """
new MutationObserver((changes, observer) => {
  const form = document.querySelector("article[data-generation] .status form");
  if (!form) return;
  observer.disconnect();
  form.requestSubmit();
}).observe(document.body, {childList: true, subtree: true});
"""


def run(page: Page, command: str) -> None:
    page.focus("#text")
    page.keyboard.type(command)
    page.keyboard.press("Enter")


def test_menu_by_keyboard_sets_and_runs_and_unknown_words_are_text(open_page: Callable[..., Page]) -> None:
    page = open_page()
    short(page)
    page.focus("#text")
    page.keyboard.type("/")
    assert page.get_attribute("#text", "aria-controls") == "command-list"
    assert page.get_attribute("#text", "aria-activedescendant") == "cmd-new"
    page.keyboard.press("ArrowUp")
    assert page.get_attribute("#text", "aria-activedescendant") == "cmd-help"
    page.keyboard.type("no_th")
    assert page.locator("#commands [role=option]:visible").count() == 1
    page.keyboard.press("Tab")
    assert page.input_value("#text") == ""
    assert page.input_value("#tune [name=thinking]") == "off"
    page.keyboard.type("/sys")
    page.keyboard.press("Enter")
    assert page.input_value("#text") == "/system "
    page.keyboard.type("Be brief.")
    page.keyboard.press("Enter")
    assert page.input_value("#tune [name=system_prompt]") == "Be brief."
    page.keyboard.type("/model nosuch")
    page.keyboard.press("Enter")
    page.wait_for_selector("#refusal .err >> text=No model of this name")
    page.fill("#text", "")
    page.keyboard.type("/")
    page.keyboard.press("Escape")
    assert not page.is_visible("#commands")
    page.fill("#text", "")
    page.keyboard.type("/unknown")
    assert page.is_visible("#commands .none")
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator("article.user .typed").inner_text() == "/unknown"
    page.keyboard.type("/think")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tune .state >> text=thinks")
    page.keyboard.type("/help")
    page.keyboard.press("Enter")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    page.keyboard.type("/clear")
    page.keyboard.press("Enter")
    page.wait_for_selector("#empty")
    assert page.locator("#rows .row").count() == 1


def test_commands_stop_write_again_export_and_leave_for_a_temporary_chat(open_page: Callable[..., Page]) -> None:
    page = open_page()
    send(page, "Tell a long story of xyzzyplugh.")
    page.wait_for_selector("article[data-generation]")
    run(page, "/stop")
    settled(page)
    assert page.locator("article.bot.stopped").count() == 1
    run(page, "/regenerate")
    page.wait_for_selector("article[data-generation]")
    run(page, "/stop")
    settled(page)
    page.wait_for_selector("article.bot >> text=2 / 2")
    with page.expect_download() as download:
        run(page, "/export")
    assert "xyzzyplugh" in Path(download.value.path()).read_text()
    assert page.input_value("#text") == ""
    run(page, "/temp")
    page.wait_for_selector("main.temporary")


def test_prompt_of_ones_own_asks_for_its_blanks_and_fills_the_box(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.goto("/prompts/new/")
    page.fill("[name=name]", "mail")
    page.fill("[name=text]", "Write to {{who|Ann}} about {{what}}.")
    page.click("main button.primary")
    page.goto("/")
    page.type("#text", "/mai")
    page.wait_for_selector("#commands [data-name=mail]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#prompt form")
    assert page.input_value("#prompt [name=who]") == "Ann"
    page.fill("#prompt [name=what]", "<b>tea</b>\nand cake")
    page.click("#prompt .primary")
    until(page, lambda: page.input_value("#text") == "Write to Ann about <b>tea</b>\nand cake.")
    assert not page.is_visible("#prompt")


def test_keys_work_and_can_be_switched_off(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 1200, "height": 800})
    page.keyboard.press("Control+/")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Shift+Escape")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("Control+b")
    assert not page.is_visible("#rail")
    page.keyboard.press("Control+b")
    assert page.is_visible("#rail")
    page.keyboard.press("Control+.")
    assert page.is_visible("#tune .sheet")
    page.keyboard.press("Escape")
    page.click(".keys")
    page.click("#keys-on")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") != "search"
    page.reload()
    page.keyboard.press("Control+/")
    assert not page.is_visible("#help")


def test_arrow_up_edits_the_last_question_and_a_key_copies_the_last_answer(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    short(page)
    send(page, "First question")
    settled(page)
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("article.user .panel textarea")
    assert page.input_value("article.user .panel textarea") == "First question"
    page.keyboard.press("Escape")
    until(page, lambda: page.locator("article.user .panel textarea").count() == 0)
    page.keyboard.press("Control+Shift+c")
    source = page.evaluate("document.querySelector('article.bot template.source').content.textContent")
    until(page, lambda: page.evaluate("navigator.clipboard.readText()") == source)


@pytest.mark.parametrize("address", ["/", "/chat/temporary/"])
def test_stop_is_heard_in_the_very_moment_the_answer_appears(open_page: Callable[..., Page], address: str) -> None:
    """A form that a script has not taken over yet would be sent as a page of its own, and the chat be gone."""
    page = open_page()
    page.goto(address)
    for number in (1, 2):
        page.evaluate(PRESS_AT_ONCE)
        send(page, "Tell a long story.")
        settled(page, number)
        assert page.locator("article.bot.stopped").count() == number
    assert page.locator("article.user").count() == 2
