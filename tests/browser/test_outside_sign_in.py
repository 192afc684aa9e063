"""Coming in by an account of another place as a person does: two real servers, and a browser that heeds the policy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import STATUS
from tests.browser.test_accessibility import Walk
from tests.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider
from tests.web.api_server import serving

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "outside_sign_in"


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def site(provider: Provider) -> Iterator[str]:
    """A web process on a database of its own. A whole fleet would also start a model, which nobody asks here."""
    url = os.environ["DATABASE_URL"]
    openid = {
        "OIDC_ISSUER": provider.issuer,  # another port, and so another origin: the content policy must allow it
        "OIDC_CLIENT_ID": CLIENT_ID,
        "OIDC_CLIENT_SECRET": CLIENT_SECRET,
        "OIDC_NAME": "Example",
    }
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        connection.execute(f"CREATE DATABASE {DATABASE}")
        env = {**os.environ, "DATABASE_URL": urlunsplit(urlsplit(url)._replace(path=f"/{DATABASE}"))}
        prepare = [sys.executable, "manage.py", "prepare", "--no-static", "--no-admin"]
        subprocess.run(prepare, cwd=ROOT, env=env, check=True, capture_output=True, timeout=120)
        with serving(DATABASE, **openid) as site:
            provider.redirect_uris.add(f"{site}/accounts/oidc/login/callback/")
            yield site
        connection.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@pytest.fixture
def page(browser: Browser, site: str, refusals: set[int]) -> Iterator[Page]:
    """Of a browser that has never been here. At the end it may have complained of nothing but `refusals`."""
    context = browser.new_context(base_url=site)
    context.set_default_timeout(15_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    context.close()
    statuses = {text: int(found[1]) for text in complaints if (found := STATUS.search(text))}
    assert [text for text in complaints if statuses.get(text) not in refusals] == []


def allow(page: Page) -> None:
    page.get_by_role("button", name="Sign in with Example").click()
    expect(page.get_by_role("heading", name="Let smolfleet know who you are?")).to_be_visible()
    page.get_by_role("button", name="Allow").click()


def test_person_comes_in_by_another_account_and_comes_back_as_the_same(page: Page, provider: Provider) -> None:
    provider.person = {"sub": "1", "preferred_username": "ann"}
    for _ in range(2):
        page.goto("/accounts/login/")
        allow(page)
        expect(page.locator("#composer")).to_be_visible()
        expect(page.locator(".me .name")).to_have_text("ann")
        page.goto("/accounts/logout/")
        page.get_by_role("main").get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in", exact=True)).to_be_visible()
    assert provider.refusals == []


def test_person_who_declines_there_is_told_so_here(page: Page) -> None:
    page.goto("/accounts/login/")
    page.get_by_role("button", name="Sign in with Example").click()
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("heading", name="You declined")).to_be_visible()
    page.get_by_role("main").get_by_role("link", name="Sign in").click()
    expect(page.get_by_label("Username")).to_be_visible()


def test_no_page_of_it_has_a_fault_that_axe_finds(page: Page, provider: Provider, refusals: set[int]) -> None:
    refusals.add(400)
    walk = Walk(page)
    for address in ("/accounts/login/", "/accounts/signup/", "/accounts/oidc/login/", "/accounts/login/"):
        walk.look(address, address)
    walk.look("declined", "/accounts/3rdparty/login/cancelled/")
    walk.look("lost", "/accounts/oidc/login/callback/?code=x&state=x")
    for subject in ("3", "4"):
        page.goto("about:blank")  # a page of the chat would notice at any moment, and lead to the sign-in by itself
        page.context.clear_cookies()
        provider.person = {"sub": subject, "preferred_username": "bob", "email": "bob@x.org", "email_verified": True}
        page.goto("/accounts/login/")
        allow(page)
        page.wait_for_selector("#composer, [name=username]")
    walk.look("name", None)
    walk.look("name, again", "/accounts/3rdparty/signup/")
    page.get_by_role("button", name="Make an account").click()
    expect(page.locator(".me .name")).to_have_text("bob2")
    walk.look("connections", "/accounts/3rdparty/")
    walk.look("last way", None, lambda page: page.get_by_role("button", name="Disconnect").click())
    expect(page.get_by_role("alert")).to_contain_text("only way to sign in")
    walk.look("connections", "/accounts/3rdparty/")
    assert not walk.faults, walk.told()
