"""The audit log in a real browser: an admin gives a role, finds that in the log, downloads it; the person sees it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Page

from tests.browser.steps import name_of
from tests.browser.test_accessibility import DESKTOP, PHONE, found_on
from tests.fleet import Fleet

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.model]


def looks_well(page: Page) -> None:
    for size, scheme in ((DESKTOP, "light"), (PHONE, "dark")):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert found_on(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]


def test_role_given_in_the_admin_is_found_in_the_log_and_seen_by_the_person(
    open_page: Callable[..., Page], live_site: Fleet, tmp_path: Path
) -> None:
    person, admin = open_page(), open_page()
    name, admin_name = name_of(person), name_of(admin)
    with psycopg.connect(live_site.env["DATABASE_URL"]) as connection:
        rights = "UPDATE accounts_user SET is_staff = true, is_superuser = true WHERE username = %s"
        connection.execute(rights, [admin_name])
        found = connection.execute("SELECT id FROM accounts_user WHERE username = %s", [name]).fetchone()
    assert found

    admin.goto(f"/admin/accounts/user/{found[0]}/change/")
    admin.check("[name=is_staff]")
    admin.click("[name=_save]")
    admin.wait_for_selector(".messagelist .success")

    admin.goto("/ops/")
    admin.click("main >> text=Audit log")
    admin.fill("[name=person]", name.upper())
    admin.select_option("[name=action]", "account.changed")
    admin.click("text=Show >> visible=true")
    row = admin.locator("tbody tr")
    row.get_by_text("Staff: no → yes").wait_for()
    assert row.count() == 1
    assert admin_name in row.inner_text() and name in row.inner_text()
    assert "127.0.0.1" in row.inner_text()
    looks_well(admin)

    with admin.expect_download() as download:
        admin.click("text=Download what was found as CSV")
    download.value.save_as(tmp_path / "log.csv")
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["actor"], row["subject"], row["action"]) for row in rows] == [(admin_name, name, "account.changed")]
    admin.click("text=Show everything")
    admin.locator("tbody tr", has_text="data exported").first.wait_for()

    person.goto("/account/usage/")
    person.click(".account-nav >> text=Activity")
    person.get_by_text(f"by {admin_name}").wait_for()
    assert "Staff: no → yes" in person.inner_text("main")
    assert "Signed in" in person.inner_text("main")
    looks_well(person)
