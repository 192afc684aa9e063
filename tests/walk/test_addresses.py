"""Addresses that nobody was given: ids of others beside one's own, ids that are none, odd paths, forged hosts, and
redirects to elsewhere. Nothing of the owner is told, nothing changes, nothing fails, nobody is led away.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pytest
from django.contrib import admin
from django.test import RequestFactory

from chatsite.rules.models import SiteRules
from tests.walk import routes
from tests.walk.back_office import MODELS
from tests.walk.table import Route
from tests.walk.test_routes import filled
from tests.walk.visiting import HX, Answer, Site
from tests.walk.world import MARK, PASSWORD

TABLE = list({route.path: route for route in routes.of_table()}.values())
WITH_IDS = [route for route in TABLE if routes.arguments_of(route.path)]
UNKNOWN = "00000000-0000-0000-0000-000000000000"
MALFORMED: dict[str, tuple[str, ...]] = {
    "uuid": ("x", UNKNOWN),
    "int": ("0", "99999999999999999999999", "-1", "%D9%A3"),
    "": ("x", "%00", "%FF", "..", "0" * 400, "' OR 1=1 --", "_00", "%0d%0aSet-Cookie:%20a=b"),
}
EVIL = (
    "//evil.example/x",
    "https://evil.example/x",
    "https:evil.example",
    "///evil.example",
    "\\\\evil.example",
    "/\\evil.example",
    "javascript:alert(1)//evil.example",
    " //evil.example",
    "\t//evil.example",
    "http:///evil.example",
    "//evil.example@testserver/",
)
LEADS_ON = (
    *("accounts/login/", "accounts/logout/", "accounts/reauthenticate/", "accounts/signup/", "i18n/setlang/"),
    *("accounts/login/code/confirm/", "accounts/2fa/authenticate/", "admin/login/"),
)
TEXTS = (
    "q",
    "owner",
    "person",
    "title",
    "tag",
    "model",
    "after",
    "before",
    "days",
    "persona",
    "at",
    "leaf",
    "state",
    "next",
)


def _check(site: Site, answer: Answer, told: str, *, asked: str = "") -> None:
    assert (answer.error is None and answer.status < 500) or answer.status == 503, (
        f"{told}: {answer.status} {answer.error!r}"
    )
    found = site.world.found_in(answer.text) - site.world.found_in(asked)
    assert not found, f"{told} tells of the owner: {sorted(found)}"


# -- ids


@pytest.mark.parametrize("route", WITH_IDS, ids=lambda route: route.path)
def test_malformed_id_is_found_nowhere(site: Site, route: Route) -> None:
    is_admin = route.path.startswith("admin/")
    for kind, name in routes.arguments_of(route.path):
        if is_admin and "change" not in route.path and "password" not in route.path:
            continue  # they look for the row in the same way
        for value in MALFORMED[kind if kind in MALFORMED else ""]:
            ids = {**site.world.ids, "odd": value}
            address = routes.address_of(_with(route, name), ids, "")
            for method in ("get", "post") if kind != "uuid" or value == UNKNOWN else ("get",):
                visitor = "admin" if is_admin or "review" in route.path else "other"
                answer = site.visit(
                    visitor, method, address, filled(route.form or {}, ids) if method == "post" else None
                )
                _check(site, answer, f"{visitor} {method} {address}", asked=address)
                assert not answer.changes, f"{method} {address} changed {answer.changes}"


def _with(route: Route, name: str) -> Route:
    return Route(route.path, route.who, ids={**route.ids, name: "odd"})


@pytest.mark.parametrize(
    "route", [route for route in WITH_IDS if "<uuid:entry_id>" in route.path], ids=lambda route: route.path
)
def test_own_conversation_does_not_open_the_entry_of_another(site: Site, route: Route) -> None:
    ids = site.world.ids
    address = routes.address_of(Route(route.path, route.who, ids={"conversation_id": "others_conversation"}), ids, "")
    for headers in ({}, HX):
        answer = site.visit("other", "post", address, filled(route.form or {}, ids), headers=headers)
        _check(site, answer, f"POST {address}")
        assert answer.status >= 400, address
        assert set(answer.changes) <= {"chat_conversation"}, answer.changes  # their own has been read
        assert not answer.redis_keys


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("send/", {"text": "x", "files": "{draft}"}),
        ("send/", {"text": "x", "files": "{attachment_id}"}),
        ("arrange/", {"verb": "untag", "name": "{tag}"}),
    ],
)
def test_form_of_one_s_own_does_not_reach_what_is_another_s(site: Site, path: str, form: dict[str, str]) -> None:
    ids = site.world.ids
    address = f"/chat/{ids['others_conversation']}/{path}"
    answer = site.visit("other", "post", address, filled(form, ids))
    _check(site, answer, f"POST {address}", asked=str(filled(form, ids)))
    for table, change in answer.changes.items():
        owners = site.world.own_of("owner")
        assert not [row for row in (*change.lost, *change.new) if any(name in row for name in owners)], table


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.path or "home")
def test_text_that_postgres_cannot_hold_fails_nothing(site: Site, route: Route) -> None:
    visitor = "owner" if "owner" in route.who.may else "admin"
    address = routes.address_of(route, site.world.ids, "&".join(f"{name}=%00x" for name in TEXTS))
    answer = site.visit(visitor, "get", address)
    assert answer.error is None, f"{address}: {answer.error!r}"
    if any(isinstance(value, str) for value in (route.form or {}).values()):
        form = dict.fromkeys((*(route.form or {}), *TEXTS), "\x00x")
        answer = site.visit(visitor, "post", address.split("?")[0], form)
        assert answer.error is None, f"{address}: {answer.error!r}"


# -- paths and hosts


def _odd_paths(ids: dict[str, Any]) -> list[str]:
    chat = ids["conversation_id"]
    return [
        f"/chat/{chat}",
        f"//chat/{chat}/",
        f"/chat//{chat}/",
        f"/chat/{str(chat).upper()}/",
        f"/chat/x/../{chat}/",
        f"/chat/%2e%2e/chat/{chat}/",
        f"/s/%2e%2e/chat/{chat}/",
        f"/offline/..;/chat/{chat}/",
        "/offline/%2e%2e/admin/",
        "/static/..%2f..%2fchatsite/settings.py",
        "/static/%2e%2e/%2e%2e/chatsite/settings.py",
        "/static/../manage.py",
        "/static//etc/passwd",
        "/health/live/../../admin/",
        "/admin/%2e%2e/chat/",
        f"/chat/{chat}/%00",
        f"/chat/{chat}/export/..%2f..%2fjson/",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//evil.example/%2e%2e/",
        "//evil.example/chat",
        "/\\evil.example/chat",
        "/%5cevil.example/chat",
        "///evil.example/chat/x",
    ]


def test_odd_paths_lead_nowhere(site: Site) -> None:
    for path in _odd_paths(site.world.ids):
        for visitor in ("stranger", "other", "admin"):
            for method in ("get", "post"):
                answer = site.visit(visitor, method, "/", None, PATH_INFO=_decoded(path), QUERY_STRING="")
                told = f"{visitor} {method} {path}"
                _check(site, answer, told, asked=path)
                assert "SECRET_KEY" not in answer.text and "root:x:" not in answer.text, told
                _check_stays(answer, told)
                assert not answer.changes, told


def _decoded(path: str) -> str:
    return unquote(path)


@pytest.mark.parametrize(
    "route",
    [route for route in TABLE if not route.path.startswith("admin/") or "<path:" not in route.path],
    ids=lambda route: route.path or "home",
)
def test_forged_host_is_refused(site: Site, route: Route) -> None:
    address = routes.address_of(route, site.world.ids)
    visitor = "owner" if "owner" in route.who.may else "admin"
    answer = site.visit(visitor, "get", address, HTTP_HOST="evil.example", HTTP_X_FORWARDED_HOST="testserver")
    assert "evil.example" not in answer.text, address
    if route.csrf or route.path not in ("health/live", "health/ready", "metrics"):  # orchestrators call by address
        assert answer.status == 400 or (answer.status, route.get) == (405, 405), f"{address}: {answer.status}"


# -- redirects


@pytest.mark.parametrize(
    "route", [route for route in TABLE if "<path:" not in route.path], ids=lambda route: route.path or "home"
)
def test_nobody_is_led_to_another_site(site: Site, route: Route) -> None:
    """Wherever an address might be told to lead on, a good one is followed by those of LEADS_ON alone."""
    values = EVIL if route.path in LEADS_ON else EVIL[:1]
    address = routes.address_of(route, site.world.ids).split("?")[0]
    for visitor in ("stranger", "owner" if "owner" in route.who.may else "admin"):
        for value in values:
            for method in ("get", "post") if route.post != 405 else ("get",):
                form = {
                    **filled(route.form or {}, site.world.ids),
                    **dict.fromkeys(("next", "back", "url", "redirect_to"), value),
                }
                headers = {"Referer": "https://evil.example/x"}
                asked = f"{address}?next={quote(value)}&url={quote(value)}"
                answer = site.visit(visitor, method, asked, form if method == "post" else None, headers=headers)
                _check_stays(answer, f"{visitor} {method} {asked}")
    if route.path not in LEADS_ON:
        answer = site.visit("owner", "get", f"{address}?next=/offline/%3Fgood")
        assert urlsplit(answer.location).path != "/offline/", (
            f"{address} leads on: add it to LEADS_ON, to try more there"
        )


@pytest.mark.parametrize("value", EVIL)
def test_signing_in_leads_to_no_other_site(site: Site, value: str) -> None:
    form = {"login": "other", "password": PASSWORD, "next": value}
    answer = site.visit("stranger", "post", f"/accounts/login/?next={quote(value)}", form)
    assert answer.status == 302, answer.body
    _check_stays(answer, value)


@pytest.mark.parametrize(
    "value", ["https://evil.example/x", "http://testserver//evil.example/", "javascript:alert(1)", "//evil.example"]
)
def test_fragment_sends_nobody_to_the_page_it_claims_to_be_of(site: Site, value: str) -> None:
    for path in ("/chat/sidebar/", "/ops/", "/account/usage/"):
        answer = site.visit("stranger", "get", path, headers={**HX, "HX-Current-URL": value})
        assert answer.status == 401
        _check_stays(answer, f"{path} {value}")
        led_on = unquote(answer.location.partition("next=")[2])
        signed_in = site.visit(
            "stranger", "post", f"/accounts/login/?next={quote(led_on)}", {"login": "other", "password": PASSWORD}
        )
        _check_stays(signed_in, f"{path} {value}")


def _check_stays(answer: Answer, told: str) -> None:
    """Every address that this answer has a browser go to, or offers to, is of this site."""
    for address in (
        answer.location,
        *re.findall(r'\s(?:href|action|src|hx-(?:get|post|push-url)|formaction)="([^"]*)"', answer.body),
    ):
        address = address.replace("&amp;", "&").replace("\\", "/").strip()
        assert not address.startswith("//"), f"{told} leads to {address}"
        parts = urlsplit(address)
        assert parts.scheme in ("", "http", "https", "data"), f"{told} leads to {address}"
        assert parts.scheme == "data" or parts.netloc in ("", "testserver"), f"{told} leads to {address}"
        assert not (parts.scheme and not parts.netloc) or parts.scheme == "data", f"{told} leads to {address}"


# -- review, under each policy; and Django's admin, looked through


@pytest.mark.parametrize("policy", ["off", "reported", "reason"])
def test_pages_of_review_are_as_the_policy_says(site: Site, policy: str) -> None:
    SiteRules.objects.update(review_policy=policy)
    site.begin(anew=True)
    for route in routes.of_table():
        if not route.path.startswith(("review/", "ops/")):
            continue
        address = routes.address_of(route, site.world.ids)
        for visitor in ("reviewer", "admin"):
            for method in ("get", "post"):
                if "reason" in (route.form or {}) and method == "post" and policy != "off":
                    continue  # the one way to read, which other tests take
                form = filled(route.form or {}, site.world.ids) if method == "post" else None
                answer = site.visit(visitor, method, address, form)
                assert answer.error is None, address
                told = site.world.found_in(answer.text) - site.world.found_in(address)
                assert visitor not in route.who.may or told <= route.shows, (address, told)
                if policy == "off" and route.path.startswith("review/") and route.path != "review/mine/":
                    assert answer.status in (404, 405), (method, address, answer.status)
                    assert not told and not answer.changes, (method, address)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_admin_of_a_model_looked_through_shows_no_text(site: Site, model: Any) -> None:
    """Searched, filtered, and with every action done to all of its rows."""
    (found,) = [found for found in admin.site._registry if found._meta.label_lower == model.name]
    its_admin, base = admin.site._registry[found], f"/admin/{model.name.replace('.', '/')}/"
    keys = [str(pk) for pk in found._base_manager.values_list("pk", flat=True)[:20]]
    for visitor in ("admin", *model.also):
        for query in (f"?q={MARK}", "?q=other", "?e=1", "?content__contains=a&title__contains=a"):
            answer = site.visit(visitor, "get", base + query)
            _check_admin(site, answer, model, f"{visitor} {base}{query}")
        request = RequestFactory().get("/admin/")
        request.user = site.world.people[visitor]
        for action in its_admin.get_actions(request):
            for more in ({}, {"post": "yes", "chosen": "1"}):
                answer = site.visit(visitor, "post", base, {"action": action, "_selected_action": keys, **more})
                _check_admin(site, answer, model, f"{visitor} {action} {base}")
    for key in keys[:3]:
        for page in ("change", "history", "delete"):
            _check_admin(site, site.visit("admin", "get", f"{base}{key}/{page}/"), model, f"{base}{key}/{page}/")


def _check_admin(site: Site, answer: Answer, model: Any, told: str) -> None:
    assert answer.error is None, f"{told}: {answer.error!r}"
    found = site.world.found_in(answer.text)
    assert found <= model.shows, f"{told} tells of the owner: {sorted(found - model.shows)}"
