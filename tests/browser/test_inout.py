"""What goes into the chat and out of it, in a real browser: files, links, exports, temporary chats, opinions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from playwright.sync_api import Browser, Page, Route

from tests.browser import put
from tests.browser.steps import send, settled, until
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

NOTE = {"name": "note.txt", "mimeType": "text/plain", "buffer": b"The lighthouse is green.\n"}


def conversation_with_an_answer(site: Fleet, page: Page) -> str:
    """These tests look at what is done with an answer, not at how it is written."""
    talk = put.conversation(site, page, "Which colour?", "It is **green**.", title="Towers")
    put.generation(site, talk.message_ids[1])
    return talk.address


def test_file_is_counted_shown_sent_and_seen_again(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.set_input_files("#file", [NOTE, {**NOTE, "name": "second.md"}])  # type: ignore[list-item]
    page.wait_for_selector("#files .chip >> nth=1")
    assert "tokens" in page.inner_text("#files .chip >> nth=0")
    page.click("#files .chip:has-text('second.md') button")
    until(page, lambda: page.locator("#files .chip").count() == 1)
    page.reload()
    assert page.locator("#files .chip").count() == 1  # it waits, as the text does
    page.set_input_files("#file", [{"name": "x.bin", "mimeType": "a/b", "buffer": bytes(900)}])
    page.wait_for_selector("#refusal >> text=x.bin")
    send(page, "What colour is it?")
    page.wait_for_selector("article.user .chip >> text=note.txt")
    until(page, lambda: page.locator("#files .chip").count() == 0)
    page.keyboard.press("Escape")
    settled(page)
    with page.expect_popup() as opened:
        page.click("article.user .chip a")
    assert opened.value.inner_text(".file-text").strip() == "The lighthouse is green."


def test_nothing_is_sent_while_a_file_is_on_its_way_and_a_queued_message_takes_it_along(
    open_page: Callable[..., Page],
) -> None:
    page = open_page()
    send(page, "Count from one to ten thousand.")
    page.wait_for_selector("article[data-generation]")
    held: list[Route] = []
    page.route("**/files/**", lambda route: held.append(route))
    page.set_input_files("#file", [NOTE])  # type: ignore[list-item]
    until(page, lambda: len(held) == 1)
    page.fill("#text", "What colour is it?")
    assert page.inner_text(".send") == "Uploading…"
    assert page.is_disabled(".send")
    page.press("#text", "Enter")
    assert page.input_value("#text") == "What colour is it?"
    held[0].continue_()
    page.wait_for_selector("#files .chip")
    until(page, lambda: page.is_enabled(".send"))
    page.press("#text", "Enter")
    page.wait_for_selector("#queue summary >> text=1 file")
    assert page.locator("#files .chip").count() == 0
    page.click("#queue >> text=Send now")
    page.wait_for_selector("article.user .chip >> text=note.txt")
    page.focus("#text")
    page.keyboard.press("Escape")
    settled(page, 2)


def test_dropped_and_pasted_files_are_taken(open_page: Callable[..., Page]) -> None:
    page = open_page()
    for event, field, name in (("drop", "dataTransfer", "a.txt"), ("paste", "clipboardData", "b.txt")):
        page.evaluate(
            "([event, field, name]) => { const data = new DataTransfer();"
            " data.items.add(new File(['words'], name, { type: 'text/plain' }));"
            " const made = new Event(event, { bubbles: true, cancelable: true });"
            " Object.defineProperty(made, field, { value: data }); document.body.dispatchEvent(made); }",
            [event, field, name],
        )
        page.wait_for_selector(f"#files .chip >> text={name}")


def test_link_opens_for_a_browser_that_is_signed_out_and_dies_when_revoked(
    open_page: Callable[..., Page], live_site: Fleet, browser: Browser
) -> None:
    page = open_page()
    page.goto(conversation_with_an_answer(live_site, page))
    page.click(".inout summary")
    page.click("text=Share…")
    page.check("input[value=anyone]")
    page.click("text=Make the link")
    address = page.input_value("#address")
    context = browser.new_context(base_url=live_site.url)
    outside = context.new_page()
    complaints: list[str] = []
    outside.on("console", lambda message: complaints.append(message.text))
    outside.goto(urlsplit(address).path)
    assert outside.inner_html(".answer strong") == "green"
    assert outside.locator("script, form").count() == 0
    assert context.cookies() == []
    assert complaints == []
    page.click("text=Revoke the link")
    page.wait_for_selector("text=Make a link")
    assert outside.goto(urlsplit(address).path).status == 404  # type: ignore[union-attr]
    context.close()


def test_exports_download_and_what_was_deleted_comes_back(
    open_page: Callable[..., Page], live_site: Fleet, tmp_path: Path
) -> None:
    page = open_page()
    address = conversation_with_an_answer(live_site, page)
    page.goto(address)
    saved = {}
    page.click(".inout summary")
    for name in ("Markdown", "HTML", "JSON"):
        with page.expect_download() as download:
            page.click(f"text=Export as {name}")
        saved[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[name])
    assert "It is **green**." in saved["Markdown"].read_text()
    assert json.loads(saved["JSON"].read_text())["format"] == "smolfleet.conversation"
    reader = page.context.new_page()
    complaints: list[str] = []
    reader.on("console", lambda message: complaints.append(message.text))
    reader.goto(saved["HTML"].as_uri())
    assert reader.inner_text("strong") == "green"
    assert reader.evaluate("getComputedStyle(document.body).maxWidth") == "736px"  # its style block is let through
    assert complaints == []
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        pk = address.split("/")[2]
        connection.execute("UPDATE chat_conversation SET leaf_id = NULL WHERE id = %s", [pk])
        connection.execute(
            "DELETE FROM chat_generation WHERE message_id IN (SELECT id FROM chat_message WHERE conversation_id = %s)",
            [pk],
        )
        connection.execute("DELETE FROM chat_message WHERE conversation_id = %s", [pk])
        connection.execute("DELETE FROM chat_conversation WHERE id = %s", [pk])
    page.click(".menu.up summary")
    page.click("text=Import and export")
    page.set_input_files("input[name=file]", saved["JSON"])
    page.click("main button:has-text('Import')")
    page.wait_for_selector("text=1 conversation with 2 messages was imported")
    with page.expect_download() as download:
        page.click("text=Export all conversations")
    assert download.value.suggested_filename.endswith(".zip")
    page.goto("/")
    page.wait_for_selector("#rows .row >> text=Towers")


def test_temporary_chat_answers_and_is_gone_after_a_reload(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.type), dialog.accept()))
    page.click("text=Temporary")
    page.wait_for_selector("main.temporary")
    send(page, "Say xyzzyplugh in one word.")
    page.wait_for_selector("article[data-generation]")
    page.keyboard.press("Escape")
    settled(page)
    send(page, "Again.")
    until(page, lambda: page.locator("article.user").count() == 2)
    page.wait_for_selector("article[data-generation] .stop")
    page.keyboard.press("Escape")
    settled(page, 2)
    with page.expect_download() as download:
        page.click("[data-act=save]")
    assert "xyzzyplugh" in Path(download.value.path()).read_text()
    assert page.locator("#rows .row").count() == 0
    page.reload()
    assert "beforeunload" in dialogs
    assert page.locator("article").count() == 0
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        stored = connection.execute(
            "SELECT DISTINCT source, request, content_sha256 FROM chat_generation g JOIN accounts_user u"
            " ON u.id = g.user_id WHERE username = %s",
            [page.locator(".me .name").text_content()],
        ).fetchall()
        assert stored == [("temporary", "", "")]
    kept = page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
    assert "xyzzyplugh" not in kept


def test_thumbs_are_given_explained_and_taken_back(open_page: Callable[..., Page], live_site: Fleet) -> None:
    page = open_page()
    page.goto(conversation_with_an_answer(live_site, page))
    page.click("[aria-label='Bad answer']")
    page.wait_for_selector("[aria-label='Bad answer'][aria-pressed=true]")
    page.click(".rate .why summary")
    page.select_option(".rate select", "wrong")
    page.fill(".rate textarea", "It is blue.")
    page.click(".rate >> text=Save")
    page.wait_for_selector(".rate >> text=Your reason")
    page.reload()
    assert page.get_attribute("[aria-label='Bad answer']", "aria-pressed") == "true"
    page.click(".rate .why summary")
    assert page.input_value(".rate textarea") == "It is blue."
    page.keyboard.press("Escape")
    until(page, lambda: not page.is_visible(".rate textarea"))
    page.click("[aria-label='Bad answer']")
    page.wait_for_selector("[aria-label='Bad answer'][aria-pressed=false]")
