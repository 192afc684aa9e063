"""What everybody needs of the pages: no fault that axe knows of, in both themes and on phones; the keyboard alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser.steps import join, send, settled, short, until
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

PHONE = {"width": 360, "height": 740}
DESKTOP = {"width": 1280, "height": 800}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
axe = Axe()


def found_on(page: Page, within: str | None = None) -> list[str]:
    """What axe has against the page, or a part of it: the rule, and where."""
    page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished.catch(() => {})))")
    result = axe.run(page, within, options={**RULES, "resultTypes": ["violations"]}).response
    return [
        f"{violation['id']}: {node['target']} {node['html'][:160]} {node['failureSummary']}"
        for violation in result["violations"]
        for node in violation["nodes"]
    ]


class Walk:
    """Pages looked at one after the other, each in the next combination of theme and size."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: dict[str, list[str]] = {}
        self._number = 0

    def look(
        self,
        name: str,
        address: str | None = None,
        prepare: Callable[[Page], Any] = lambda page: None,
        within: str | None = None,
    ) -> None:
        is_dark, is_phone = self._number % 2 == 1, self._number % 4 in (1, 2)
        self._number += 1
        self.page.emulate_media(color_scheme="dark" if is_dark else "light", reduced_motion="reduce")
        self.page.set_viewport_size(PHONE if is_phone else DESKTOP)  # type: ignore[arg-type]
        if address is not None:
            self.page.goto(address)
        prepare(self.page)
        faults = found_on(self.page, within)
        if self.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults.append("runs over the right edge")
        if faults:
            self.faults[f"{name}, {'dark' if is_dark else 'light'}, {'phone' if is_phone else 'desktop'}"] = faults

    def told(self) -> str:
        return "\n".join(f"{place}: {fault}" for place, faults in self.faults.items() for fault in faults)


@pytest.fixture(scope="module")
def filled(browser: Browser, live_site: Fleet) -> tuple[Any, str, dict[str, str]]:
    """A person with the demo's conversations: how a browser is theirs, their name, the conversations."""
    context = browser.new_context(base_url=live_site.url)
    live_site.forget_sign_ups()
    name = join(context.new_page())
    state = context.storage_state()
    context.close()
    code = f"import json; from tests.browser import demo; print(json.dumps(demo.fill({name!r})))"
    made = live_site.manage("shell", "-v", "0", "-c", code)
    return state, name, dict(json.loads(made.strip().splitlines()[-1]))


def test_chat_has_no_fault_that_axe_finds(
    open_page: Callable[..., Page], filled: tuple[Any, str, dict[str, str]]
) -> None:
    state, _, made = filled
    page = open_page(storage_state=state)
    walk = Walk(page)
    walk.look("empty", "/")
    for name in ("code", "table", "math", "error", "tools"):
        walk.look(name, f"/chat/{made[name]}/")
    walk.look("thought", f"/chat/{made['thinking']}/", lambda page: page.click("details.think summary"))

    def open_drawer(page: Page) -> None:
        if page.is_visible(".burger"):
            page.click(".burger")
            page.wait_for_selector("#rail.open")

    def open_row_menu(page: Page) -> None:
        open_drawer(page)
        page.locator(".row details.menu summary").first.click()
        page.wait_for_selector(".row .sheet [name=title]")

    def open_account(page: Page) -> None:
        open_drawer(page)
        page.click(".menu.up summary")

    def search(page: Page) -> None:
        open_drawer(page)
        page.fill("#search", "hash")
        page.wait_for_selector("#hits")

    walk.look("menu of a row", "/", open_row_menu)
    walk.look("account menu", "/", open_account, within=".me")  # links behind it are half covered
    walk.look("found while typing", "/", search)
    walk.look("search", "/chat/search/?q=hash")
    walk.look("settings", f"/chat/{made['code']}/", lambda page: page.click("#tune summary"))
    walk.look("keys", None, lambda page: (page.keyboard.press("Escape"), page.keyboard.press("Control+/")))

    def open_edit(page: Page) -> None:
        page.click(".msg.user [data-act=edit]")
        page.wait_for_selector(".edit textarea")

    walk.look("edit", f"/chat/{made['code']}/", open_edit)
    walk.look("commands", f"/chat/{made['table']}/", lambda page: page.type("#text", "/"))
    for address in (f"/chat/{made['code']}/share/", "/transfer/", "/links/", "/prompts/", "/review/mine/"):
        walk.look(address, address)
    for address in ("/account/keys/", "/personas/", "/personas/new/"):
        walk.look(address, address)
    assert not walk.faults, walk.told()


def test_pages_of_everybody_and_of_staff_have_no_fault_that_axe_finds(
    open_page: Callable[..., Page], live_site: Fleet, filled: tuple[Any, str, dict[str, str]]
) -> None:
    state, name, made = filled
    page = open_page(storage_state=state)
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        connection.execute("UPDATE accounts_user SET is_staff = true, is_superuser = true WHERE username = %s", [name])
    walk = Walk(page)
    for address in ("/review/", f"/review/{made['code']}/", "/ops/", "/accounts/password/change/"):
        walk.look(address, address)
    for address in ("/accounts/2fa/", "/accounts/2fa/totp/activate/", "/accounts/sessions/", "/accounts/email/"):
        walk.look(address, address)  # the second asks for the password first
    walk.look("admin", "/admin/")
    page.context.clear_cookies()
    for address in ("/accounts/login/", "/accounts/signup/", "/offline/"):
        walk.look(address, address)
        walk.look(address, address)
    assert not walk.faults, walk.told()


def focused(page: Page) -> str:
    """What has the focus, as its tag, id and words."""
    return str(page.evaluate("(({tagName, id, innerText}) => `${tagName} ${id} ${innerText}`)(document.activeElement)"))


def tab_to(page: Page, selector: str, key: str = "Tab") -> None:
    for _ in range(120):
        if page.evaluate("(wanted) => document.activeElement.matches(wanted)", selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{selector} is not reached; the focus is at {focused(page)}")


def test_everything_can_be_done_with_the_keyboard_alone(open_page: Callable[..., Page]) -> None:
    page = open_page()
    name = (page.locator(".me .name").text_content() or "").strip()
    page.goto("/accounts/logout/")
    page.click("main button[type=submit]")
    page.wait_for_selector("[name=login]")
    tab_to(page, "[name=login]")
    page.keyboard.type(name)
    tab_to(page, "[name=password]")
    page.keyboard.type("correct horse 7")
    page.keyboard.press("Enter")
    page.wait_for_selector("#composer")

    tab_to(page, ".skip", "Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("Tell me about the keyboard, at length.")
    page.keyboard.press("Enter")
    page.wait_for_selector("article[data-generation]")
    assert "text" in focused(page)
    tab_to(page, ".halt")
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator("#announcer").text_content() == "Answer stopped"
    assert not focused(page).startswith("BODY"), "stopping loses the focus"

    until(page, lambda: page.locator("#rows .live").count() == 0)  # the list was drawn anew
    tab_to(page, ".row.on summary", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".row.on [name=title]")
    tab_to(page, ".row.on [name=title]")
    page.keyboard.press("Control+A")
    page.keyboard.type("Named by keys")
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#heading") == "Named by keys")
    until(page, lambda: page.locator(".row.on [name=title]:visible").count() == 0)
    assert not focused(page).startswith("BODY"), "renaming loses the focus"

    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.accept()))
    tab_to(page, ".row.on summary", "Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".row.on .danger")
    tab_to(page, ".row.on .danger")
    page.keyboard.press("Enter")
    page.wait_for_selector("#empty")
    assert len(asked) == 1
    assert "Named by keys" in asked[0]
    until(page, lambda: not focused(page).startswith("BODY"))


def test_status_is_said_once_and_not_for_every_token(open_page: Callable[..., Page]) -> None:
    page = open_page()
    short(page)
    page.evaluate(
        "() => { window.said = []; const region = document.getElementById('announcer');"
        " const hear = new MutationObserver(() => said.push(region.textContent));"
        " hear.observe(region, {childList: true, characterData: true, subtree: true}); }"
    )
    send(page, "Name three colours.")
    settled(page)
    assert page.evaluate("window.said") == ["Answer is being written", "Answer ready"]
    assert page.locator("[aria-live]").count() == 1
    assert page.locator("article.bot [role=status], article.bot [aria-live]").count() == 0


def test_lines_stay_readable_on_the_widest_screen(
    open_page: Callable[..., Page], filled: tuple[Any, str, dict[str, str]]
) -> None:
    state, _, made = filled
    page = open_page(storage_state=state, viewport={"width": 3440, "height": 1440})
    for name in ("table", "thinking"):
        page.goto(f"/chat/{made[name]}/")
        box = page.locator("article.bot .body").bounding_box()
        assert box
        assert box["width"] <= 46 * 16
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
