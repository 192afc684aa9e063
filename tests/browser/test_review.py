"""A report's way in a real browser: its owner makes it, a reviewer finds and handles it, its owner sees that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from playwright.sync_api import Page

from tests.browser.steps import name_of, send, settled, short
from tests.browser.test_accessibility import DESKTOP, PHONE, found_on
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

SET_POLICY = (
    "INSERT INTO rules_siterules (id, review_policy, two_factor) VALUES (1, %s, 'nobody') "
    "ON CONFLICT (id) DO UPDATE SET review_policy = EXCLUDED.review_policy"
)
PERMIT = (
    "INSERT INTO accounts_user_user_permissions (user_id, permission_id) "
    "SELECT u.id, p.id FROM accounts_user u, auth_permission p WHERE u.username = %s AND p.codename = 'view_transcript'"
)


@pytest.fixture
def only_reported(live_site: Fleet) -> Iterator[None]:
    """The policy of the site while this test runs; the others find it as it is by default."""
    with psycopg.connect(live_site.env["DATABASE_URL"], autocommit=True) as connection:
        connection.execute(SET_POLICY, ["reported"])
        yield
        connection.execute(SET_POLICY, ["reason"])


def make_reviewer(site: Fleet, name: str) -> None:
    with psycopg.connect(site.env["DATABASE_URL"]) as connection:
        connection.execute("UPDATE accounts_user SET is_staff = true WHERE username = %s", [name])
        connection.execute(PERMIT, [name])


def look(page: Page, what: str) -> None:
    """No fault that axe knows of, light and wide or dark and narrow, and nothing over the right edge."""
    for size, scheme in ((PHONE, "dark"), (DESKTOP, "light")):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        assert found_on(page) == [], what
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), what


def test_a_report_is_made_opened_handled_and_answered(
    open_page: Callable[..., Page], live_site: Fleet, only_reported: None
) -> None:
    owner, reviewer = open_page(), open_page()
    owners, reviewers = name_of(owner), name_of(reviewer)
    short(owner)
    send(owner, "Name a colour.")
    settled(owner)
    owner.hover("article.bot")
    owner.click("[aria-label='Bad answer']")
    owner.click(".why summary")
    owner.fill(".why [name=comment]", "That is no colour.")
    owner.check("text=Show this conversation to reviewers")
    assert owner.is_visible("text=Reviewers of this site can then read this answer")
    look(owner, "sheet")
    owner.click(".why >> text=Save")
    owner.wait_for_selector(".outcome >> text=Shown to reviewers")

    make_reviewer(live_site, reviewers)
    reviewer.reload()
    reviewer.click(".menu.up summary")
    reviewer.click(".me >> text=Review")
    reviewer.wait_for_selector("text=Here only conversations with an answer that its owner has reported")
    reviewer.fill("[name=owner]", owners)
    reviewer.click("main >> role=button[name=Find]")
    reviewer.wait_for_selector("tbody tr")
    look(reviewer, "search")
    reviewer.click("text=Reported answers")
    row = reviewer.locator(".entries li", has_text=owners)
    row.wait_for()
    look(reviewer, "reports")
    row.locator("text=Open, with a reason").click()
    reviewer.fill("[name=reason]", "You reported the answer")
    reviewer.click("text=Record and open")
    reviewer.wait_for_selector("text=That is no colour.")
    reviewer.click("text=mark as handled")
    look(reviewer, "transcript")
    reviewer.fill("[name=note]", "Thank you, we looked into it.")
    reviewer.click("role=button[name='Mark as handled']")
    reviewer.wait_for_selector("text=The report is handled")
    reviewer.click("role=link[name=Handled]")
    reviewer.locator(".entries li", has_text=owners).locator("text=The outcome").click()
    reviewer.wait_for_selector("role=button[name='Open again']")
    look(reviewer, "report")

    owner.reload()
    owner.wait_for_selector(".outcome >> text=Thank you, we looked into it.")
    look(owner, "outcome")
    owner.goto("/review/mine/")
    assert owner.is_visible("text=Reviewers can open only what you report")
    assert owner.is_visible("text=You reported the answer")
    assert owner.is_visible(f"text=Reviewed by {reviewers}")
    look(owner, "mine")
