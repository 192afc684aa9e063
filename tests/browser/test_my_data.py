"""One's own data in a real browser: taken away, and the account deleted; then the name is free again."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable

import psycopg
import pytest
from playwright.sync_api import Page

from tests.browser.steps import PASSWORD
from tests.browser.test_inout import conversation_with_an_answer
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


def test_everything_is_downloaded_then_the_account_is_deleted_and_its_name_free(
    open_page: Callable[..., Page], live_site: Fleet, refusals: set[int]
) -> None:
    refusals.add(400)  # a wrong name
    page = open_page()
    name = page.locator(".me .name").inner_text()
    talk = conversation_with_an_answer(live_site, page)
    page.goto(talk)
    page.evaluate("localStorage.setItem('left behind', 'a draft')")

    page.goto("/account/data/")
    assert page.get_attribute(".account-nav [aria-current=page]", "href") == "/account/data/"
    assert page.locator(".facts dt:has-text('Messages') + dd").first.inner_text() == "2"
    with page.expect_download() as download:
        page.click("text=Download everything")
    assert download.value.suggested_filename.startswith(name)
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.testzip() is None
        assert json.loads(archive.read("account/profile.json"))["username"] == name
        (told,) = (archive.read(entry).decode() for entry in archive.namelist() if entry.startswith("json/"))
        assert "It is **green**." in told

    page.click("text=Delete my account…")
    page.fill("[name=password]", PASSWORD)
    page.click("main button[type=submit]")
    page.wait_for_selector("h1 >> text=Delete the account")
    page.fill("[name=name]", name.upper())
    page.click("text=Delete my account for good")
    page.wait_for_selector(".errorlist >> text=is not the name of this account")
    page.fill("[name=name]", name)
    page.click("text=Delete my account for good")
    page.wait_for_selector("h1 >> text=The account is deleted")
    assert {cookie["name"] for cookie in page.context.cookies()} <= {
        "csrftoken",
        "zone",
    }  # the browser's, not the account's
    assert page.evaluate("localStorage.getItem('left behind')") is None

    page.goto(talk)
    assert "/accounts/login/" in page.url
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        query = "SELECT count(*) FROM chat_conversation WHERE id = %s"
        assert connection.execute(query, [talk.split("/")[2]]).fetchone() == (0,)
    live_site.forget_sign_ups()
    page.goto("/accounts/signup/")
    page.fill("[name=username]", name)
    page.fill("[name=password1]", PASSWORD)
    page.fill("[name=password2]", PASSWORD)
    page.click("main button[type=submit]")
    page.wait_for_selector("#composer")
    assert page.locator(".me .name").inner_text() == name
    assert page.locator("#rows .row").count() == 0
