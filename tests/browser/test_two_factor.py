"""A second factor and sessions in a real browser: set up, sign in with it, be made to have one, end another session."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import psycopg
import pytest
from playwright.sync_api import Page

from tests.browser.steps import PASSWORD, name_of, sign_in
from tests.fleet import Fleet
from tests.totp import code

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


def confirm_password(page: Page) -> None:
    page.wait_for_url("**/accounts/reauthenticate/**")
    page.fill("[name=password]", PASSWORD)
    page.click("main button[type=submit]")


def set_up(page: Page) -> tuple[str, list[str]]:
    """From the page that shows the secret to the one that shows recovery codes; the secret and the codes."""
    page.wait_for_selector("img.qr")
    assert page.locator("img.qr").evaluate("(picture) => picture.naturalWidth") > 100, "the policy hides the picture"
    secret = page.inner_text("code.secret")
    page.fill("[name=code]", code(secret))
    page.click("main button[type=submit]")
    page.wait_for_selector(".codes li")
    return secret, page.locator(".codes code").all_inner_texts()


def leave(page: Page) -> None:
    page.goto("/accounts/logout/")
    page.click("main button[type=submit]")
    page.wait_for_url("**/accounts/login/**")


def test_set_up_and_sign_in_with_a_code_of_the_app_and_of_the_paper(open_page: Callable[..., Page]) -> None:
    page = open_page()
    name = name_of(page)
    page.click(".menu.up summary")
    page.click(".menu.up .sheet .item:has-text('Account')")
    page.click(".account-nav a:has-text('Two-factor')")
    page.click("text=Set it up")
    confirm_password(page)
    secret, codes = set_up(page)
    assert len(codes) == 10
    for one in (code(secret), codes[0]):
        leave(page)
        sign_in(page, name)
        page.wait_for_url("**/accounts/2fa/authenticate/")
        page.fill("[name=code]", one)
        page.keyboard.press("Enter")
        page.wait_for_selector("#composer")
    page.goto("/accounts/2fa/")
    assert page.locator("text=9 of 10 are left").is_visible()


def test_a_group_makes_its_members_have_one(
    open_page: Callable[..., Page], live_site: Fleet, refusals: set[int]
) -> None:
    page = open_page()
    group = f"careful {uuid.uuid4().hex[:8]}"
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        rows = "INSERT INTO auth_group (name) VALUES (%s) RETURNING id"
        (group_id,) = connection.execute(rows, [group]).fetchone() or (None,)
        connection.execute(
            "INSERT INTO rules_grouprules (group_id, requires_two_factor) VALUES (%s, true)",
            [group_id],
        )
        connection.execute(
            "INSERT INTO accounts_user_groups (user_id, group_id) SELECT id, %s FROM accounts_user WHERE username = %s",
            [group_id, name_of(page)],
        )
    refusals.add(401)
    page.fill("#text", "Hello")
    page.press("#text", "Enter")  # the page was open before the rule was made
    confirm_password(page)
    assert page.locator("text=The rules of this site ask you for one").is_visible()
    page.goto("/links/")
    page.wait_for_url("**/accounts/2fa/totp/activate/")
    set_up(page)
    page.click("text=Go on to where you wanted to go")
    page.wait_for_url("**/links/")
    page.goto("/accounts/2fa/")
    assert page.locator("text=so you cannot take it away").is_visible()


def test_ending_another_session_sends_its_page_to_the_sign_in(
    open_page: Callable[..., Page], refusals: set[int]
) -> None:
    page = open_page()
    other = open_page(storage_state={"cookies": [], "origins": []})
    other.goto("/accounts/login/")
    name = name_of(page)
    sign_in(other, name)
    other.wait_for_selector("#composer")
    other.fill("#text", "my careful words")
    page.goto("/accounts/sessions/")
    assert page.locator(".sessions > li").count() == 2
    page.click(".sessions button:has-text('End')")
    page.wait_for_selector("text=That session has ended")
    assert page.locator(".sessions > li").count() == 1
    refusals.add(401)
    other.wait_for_url("**/accounts/login/**")  # by itself: it is told
    sign_in(other, name)
    other.wait_for_selector("#composer")
    assert other.input_value("#text") == "my careful words"
