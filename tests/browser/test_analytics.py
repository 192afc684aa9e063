"""An operator who is no staff looks at analytics in a browser: period, bars, table, file. Nobody else gets in."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Page

from tests.browser.steps import name_of, until
from tests.browser.test_accessibility import DESKTOP, PHONE, found_on
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

_GROUP = """
INSERT INTO accounts_user_groups (user_id, group_id)
SELECT person.id, role.id FROM accounts_user person, auth_group role
WHERE person.username = %s AND role.name = 'Operators'
"""
_USED = """
INSERT INTO usage_usageday (user_id, day, model, source, num_answers, num_failed, num_stopped,
                            prompt_tokens, cached_tokens, completion_tokens, charged_tokens, decode_seconds)
SELECT id, current_date - number, 'of-the-test', 'chat', 10 + (number * 7) %% 23, number %% 3, number %% 2,
       4000, 2500, 900 + (number * 371) %% 700, 2400, 30
FROM accounts_user, generate_series(1, 80) number WHERE username = %s
"""


@pytest.fixture
def operator(open_page: Callable[..., Page], live_site: Fleet) -> Page:
    page = open_page()
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        for query in (_GROUP, _USED):
            assert connection.execute(query, [name_of(page)]).rowcount
    return page


def test_an_operator_looks_at_analytics(operator: Page) -> None:
    page = operator
    name = name_of(page)
    page.reload()  # the menu has it now
    page.click(".me summary")
    page.click(".me a[href='/ops/']")
    page.click("main a[href='/ops/analytics/']")
    assert page.locator(".periods [aria-current=page]").inner_text() == "30 days"
    assert page.locator(".chart").count() == 3
    assert page.locator(".chart").first.locator("g").count() == 30
    assert "of-the-test" in page.inner_text("main")
    assert name in page.inner_text("main")

    page.click(".periods >> text=7 days")
    until(page, lambda: page.locator(".chart").first.locator("g").count() == 7)
    page.click("details summary >> text=Table of days")
    today = datetime.datetime.now(datetime.UTC).date()
    assert (today - datetime.timedelta(days=6)).isoformat() in page.inner_text("details")

    with page.expect_download() as saved:
        page.click("button >> text=CSV")
    rows = Path(saved.value.path()).read_text().splitlines()
    assert rows[0].startswith("day,model,source,people")
    assert sum("of-the-test" in row for row in rows) == 6


def test_it_is_fine_in_both_themes_and_on_a_phone(operator: Page) -> None:
    faults = {}
    for size, theme in ((DESKTOP, "light"), (PHONE, "dark"), (PHONE, "light"), (DESKTOP, "dark")):
        operator.set_viewport_size(size)  # type: ignore[arg-type]
        operator.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
        operator.goto("/ops/analytics/?days=90")
        operator.click("details summary >> text=Table of days")
        found = found_on(operator)
        if operator.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append("runs over the right edge")
        if found:
            faults[size["width"], theme] = found
    assert not faults


def test_for_others_it_is_shut(open_page: Callable[..., Page], refusals: set[int]) -> None:
    page = open_page()
    refusals.add(403)
    answer = page.goto("/ops/analytics/")
    assert answer
    assert answer.status == 403
    assert page.locator(".chart").count() == 0
    page.goto("/")
    page.click(".me summary")
    assert page.locator(".me a[href^='/ops/']").count() == 0
