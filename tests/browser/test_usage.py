"""A small quota in a real browser: sends until it is used up, the refusal at the message box, the page that tells."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg
import pytest
from playwright.sync_api import Page

from tests.browser.steps import send, settled, short, until
from tests.browser.test_accessibility import DESKTOP, PHONE, found_on
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

MAX_SENDS = 12


def limit_of_today(site: Fleet, page: Page, tokens: int) -> None:
    name = page.locator(".me .name").text_content()
    with psycopg.connect(site.env["DATABASE_URL"]) as connection:
        connection.execute(
            "INSERT INTO rules_userrules (user_id, tokens_per_day)"
            " SELECT id, %s FROM accounts_user WHERE username = %s",
            [tokens, name],
        )


def test_sends_go_on_until_the_quota_is_used_and_the_refusal_keeps_what_was_typed(
    open_page: Callable[..., Page], live_site: Fleet, refusals: set[int]
) -> None:
    refusals.add(429)
    page = open_page()
    limit_of_today(live_site, page, 200)
    short(page)
    refusal = page.locator("#refusal .err")
    for number in range(1, MAX_SENDS):
        send(page, f"This is message {number} of a few.")
        answers = page.locator("article.bot")
        until(page, lambda: refusal.count() == 1 or answers.count() == number)  # noqa: B023  it ends with the round
        if refusal.count():
            break
        settled(page, number)
    else:
        pytest.fail("never refused")
    assert number > 1, "refused at once"
    said = refusal.inner_text()
    assert re.search(r"of today .* New ones come at 00:00 \(in (\d+ h )?\d+ min\)\.$", said), said
    assert page.input_value("#text") == f"This is message {number} of a few."
    page.reload()
    assert page.locator("article.user").count() == number - 1
    assert page.input_value("#text") == f"This is message {number} of a few."  # the draft outlives the page, too

    page.goto("/account/usage/")
    left = page.locator(".balance >> nth=0")
    until(page, lambda: "held" not in left.inner_text() or bool(page.reload()))
    told = re.search(r"([\d,]+) of 200 tokens are left; new ones come at 00:00\.", left.inner_text())
    assert told is not None, left.inner_text()
    assert 0 <= int(told[1]) < 200
    assert left.locator("meter").get_attribute("max") == "200"
    today = page.locator("#used ~ .scroll tbody tr >> nth=0")
    assert today.locator("td >> nth=0").inner_text() == str(number - 1)
    assert today.locator("td >> nth=4").inner_text() == str(200 - int(told[1]))
    assert page.locator("svg.heat rect").count() > 26 * 7 - 7
    page.click(".each-day summary")
    assert page.locator(".each-day tbody tr").count() == 1
    for size, scheme in ((DESKTOP, "light"), (PHONE, "dark")):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert found_on(page) == []
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    with page.expect_download() as download:
        page.click("text=All days as CSV")
    assert download.value.path().read_text().startswith("day,model,source,")
