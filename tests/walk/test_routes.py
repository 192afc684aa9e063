"""Every page of the site, asked for by every kind of visitor: nobody gets what is not theirs, and nobody changes it.

A route without an entry in the table fails here, and so does an entry without a route.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from tests.walk import routes
from tests.walk.table import LOGIN, SIGNED_IN, Route
from tests.walk.visiting import FORGED, HX, Answer, Site
from tests.walk.world import VISITORS
from tests.web import exports

TABLE = routes.of_table()
SOME = ("stranger", "other", "owner")  # are enough for a method that is not there, and where all may do the same
NEVER = {"phone", "hash", "password", "session", "othersession"}  # not even shown to herself


def test_every_route_has_its_entry_in_the_table() -> None:
    entered = {route.path for route in TABLE}
    missing = [path for path in routes.of_site() if path not in entered]
    assert not missing, (
        f"Nobody has said who may have these: {missing}. Add a line for each, `Route(path, who, …)`, to pages.py, "
        "accounts.py or back_office.py of tests/walk; a model of Django's admin is a line of MODELS there."
    )


def test_every_entry_of_the_table_has_its_route() -> None:
    there = set(routes.of_site())
    stale = [route.path for route in TABLE if route.path not in there]
    assert not stale, f"The site has no such routes any more; take their lines out of tests/walk: {stale}"


def _name(route: Route) -> str:
    return "-".join([route.path or "home", *route.ids.values(), route.query.split("=")[0]]).rstrip("-")


@pytest.mark.parametrize("route", TABLE, ids=_name)
def test_route_gives_each_visitor_what_the_table_says(site: Site, route: Route) -> None:
    ids = site.world.ids
    address = routes.address_of(route, ids)
    for visitor in VISITORS:
        if route.get != 405 or visitor in SOME:
            answer = site.visit(visitor, "get", address)
            _check(site, route, visitor, "get", address, answer, f"{visitor} GET {address}")
        for name, form in _forms(route, visitor):
            answer = site.visit(visitor, "post", address, filled(form, ids))
            expected = {route.empty} if name == "empty" else None
            _check(site, route, visitor, "post", address, answer, f"{visitor} POST {address} {form}", expected=expected)
    for visitor in _fragment_visitors(route):
        for method in [name for name, status in (("get", route.get), ("post", route.post)) if status != 405]:
            form = filled(route.form or {}, ids) if method == "post" else None
            answer = site.visit(visitor, method, address, form, headers=HX)
            _check_fragment(site, route, visitor, method, address, answer, f"{visitor} htmx {method} {address}")
    if route.post != 405 and route.csrf:
        visitor = "owner" if "owner" in route.who.may else "admin"
        answer = site.visit(visitor, "post", address, filled(route.form or {}, ids), with_token=False)
        assert answer.status == 403 or (answer.status == 404 == route.get), (visitor, address, answer.status)
        assert not answer.has_written, (visitor, address, answer.changes)


def _fragment_visitors(route: Route) -> tuple[str, ...]:
    """Nothing of Django's admin is a fragment: there it is enough that nobody is shown a sign-in."""
    if not route.path.startswith("admin/"):
        return SOME
    return ("stranger",) if "<path:" not in route.path else ()


def _forms(route: Route, visitor: str) -> list[tuple[str, Mapping[str, Any]]]:
    """What this visitor posts there. Where several are the same to the page, some of them are enough."""
    if visitor not in SOME and (route.post == 405 or (route.who.may >= SIGNED_IN.may and visitor != "admin")):
        return []
    if route.post == 405 and route.query:  # another entry's
        return []
    if route.writes == routes.ANYTHING and visitor in ("reviewer", "operator", "auditor", "owner"):
        return []  # of Django's admin, for which they are the same as the other
    forms: list[tuple[str, Mapping[str, Any]]] = [("form", route.form or {})]
    if route.empty and visitor in route.who.may & {"owner", "admin"}:
        forms.append(("empty", {}))
    return forms


def filled(form: Mapping[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    """The form with ids for names in braces, and a file for bytes, which are its name."""
    made: dict[str, Any] = {}
    for name, value in form.items():
        if isinstance(value, bytes):
            content = json.dumps(exports.chatgpt()).encode() if value.endswith(b".json") else b"a file"
            made[name] = SimpleUploadedFile(value.decode(), content, content_type="text/plain")
        else:
            made[name.format(**ids)] = value.format(**ids) if isinstance(value, str) else value
    return made


# -- what is checked


def _check(
    site: Site,
    route: Route,
    visitor: str,
    method: str,
    address: str,
    answer: Answer,
    told: str,
    *,
    expected: set[int] | None = None,
) -> None:
    assert answer.error is None, f"{told}: {answer.error!r}"
    assert FORGED not in answer.text, f"{told} believes X-Forwarded-Host"
    expected = expected or route.expected(visitor, method)
    assert answer.status in expected, f"{told}: {answer.status}, not {expected}; {answer.location}"
    may = visitor in route.who.may
    if not may and answer.status == LOGIN == route.who.refusal_of(visitor, method):
        assert answer.location.startswith(("/accounts/", "/admin/", "/")), told
    _check_secrets(site, route, visitor, address, answer, told)
    _check_changes(site, route, visitor, method, answer, told)
    if method == "post" and visitor == "owner" and may and expected == {route.post} and answer.status < 400:
        assert route.keeps or answer.has_written, f"{told} changed nothing: is that form right?"


def _check_fragment(
    site: Site, route: Route, visitor: str, method: str, address: str, answer: Answer, told: str
) -> None:
    assert answer.error is None, f"{told}: {answer.error!r}"
    plain = route.expected(visitor, method)
    if visitor not in route.who.may and LOGIN in plain and answer.status != 405:
        assert answer.status in (302, 401), f"{told}: {answer.status}"
    assert answer.status != 302 or "/login/" not in answer.location, f"{told}: a sign-in inside a fragment"
    if answer.status == 401 and "HX-Redirect" in answer.headers:
        assert answer.location.endswith("/login/?next=/offline/%3Fpage"), f"{told}: {answer.location}"  # where it was
        assert answer.body == "", told
    elif visitor in route.who.may:
        assert (answer.status < 400) is (min(plain) < 400), f"{told}: {answer.status}, without htmx {plain}"
    else:
        assert answer.status in plain, f"{told}: {answer.status}, without htmx {plain}"
    _check_secrets(site, route, visitor, address, answer, told)
    _check_changes(site, route, visitor, method, answer, told)


def _check_secrets(site: Site, route: Route, visitor: str, address: str, answer: Answer, told: str) -> None:
    asked = address + str(route.form or "")  # who names a word is told none by hearing it again
    found = site.world.found_in(answer.text) - site.world.found_in(asked)
    if visitor == "owner":
        assert not found & NEVER - {"session"}, f"{told} shows {found & NEVER}"
    elif visitor in route.who.may:
        assert found <= route.shows, f"{told} tells of the owner: {sorted(found - route.shows)}"
    else:
        assert not found, f"{told} tells of the owner: {sorted(found)}"


def _check_changes(site: Site, route: Route, visitor: str, method: str, answer: Answer, told: str) -> None:
    """Looking changes nothing. A deed changes what is one's own, and of others what the table says."""
    tables = set(answer.changes)
    if method == "get":
        assert tables <= route.notes, f"{told} changed {answer.changes}"
        assert not answer.redis_keys, f"{told} changed {answer.redis_keys}"
    elif visitor not in route.who.may or answer.status == 405:
        assert tables <= route.notes and not answer.redis_keys, f"{told} changed {answer.changes} {answer.redis_keys}"
    elif visitor != "owner" and route.writes != routes.ANYTHING:
        own = site.world.own_of(visitor)
        owners = site.world.own_of("owner")
        for table, change in answer.changes.items():
            if table not in route.writes:
                strange = [row for row in change.lost if not any(name in row for name in own)]
                strange += [row for row in change.new if any(name in row for name in owners)]
                assert not strange, f"{told} changed {table} of others: {strange}"


def test_whatever_the_owner_wrote_is_there_to_be_told(site: Site) -> None:
    """Else the walk would look for words that no page could show: each is found on some page of hers."""
    written = site.world.found_in("\n".join(row for table in site.all_rows().values() for row in table))
    pages = (
        "/account/activity/",
        "/review/mine/",
        f"/chat/{site.world.ids['busy']}/",
        "/links/",
        "/accounts/3rdparty/",
    )
    seen = {place for page in pages for place in site.world.found_in(site.visit("owner", "get", page).text)}
    seen |= site.world.found_in(site.visit("owner", "post", "/account/data/download/").text)
    assert written - seen <= NEVER | {"recovery"}, written - seen
    assert len(seen) > 40


def test_walk_left_the_world_as_it_was(site: Site) -> None:
    site.check_untouched()
