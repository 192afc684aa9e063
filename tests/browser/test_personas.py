"""A persona from its page to the first answer of a chat that begins with it, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from playwright.sync_api import Page

from tests.browser.steps import send, settled
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


def test_chat_that_begins_with_a_persona_keeps_its_settings(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    page.click(".menu.up summary")
    page.click(".me .sheet >> text=Personas")
    page.click("text=New persona")
    page.fill("#id_name", "Poet")
    page.fill("#id_line", "Speaks in verse")
    page.fill("#id_system_prompt", "Answer in rhymes.")
    page.fill("#id_temperature", "0.5")
    page.fill("#id_max_tokens", "3")
    page.click("main button.primary")
    page.wait_for_selector(".list >> text=Speaks in verse")
    page.goto("/")
    page.click("#empty >> text=Poet")
    page.wait_for_selector("#persona >> text=You speak to Poet · Speaks in verse")
    page.click("#tune summary")
    assert page.input_value("#tune [name=system_prompt]") == "Answer in rhymes."
    page.keyboard.press("Escape")
    send(page, "Hello")
    page.wait_for_url("**/chat/*/")
    settled(page)
    assert "3 tokens" in page.locator("article.bot .meta").last.inner_text()
    query = "SELECT system_prompt, temperature, max_tokens, top_p FROM chat_conversation WHERE id = %s"
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        stored = connection.execute(query, [page.url.rstrip("/").rsplit("/", 1)[1]]).fetchone()
    assert stored == ("Answer in rhymes.", 0.5, 3, None)
    page.click("[data-shortcut=new]")
    page.wait_for_selector("#empty")
    assert page.input_value("#tune [name=system_prompt]") == ""  # the next chat begins without
    page.click("#empty >> text=Poet")
    page.click(".to-temporary")
    page.wait_for_selector("main.temporary >> text=You speak to Poet")
    send(page, "Hello")
    settled(page)
    send(page, "Again")
    settled(page, 2)
    query = (
        "SELECT g.source, g.completion_tokens FROM chat_generation g JOIN accounts_user u ON u.id = g.user_id"
        " WHERE u.username = %s ORDER BY g.id"
    )
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        written = connection.execute(query, [page.locator(".me .name").text_content()]).fetchall()
    assert written == [("chat", 3), ("temporary", 3), ("temporary", 3)]
