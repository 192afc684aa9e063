"""The routes that the site has, as its URL configuration says, and the addresses that the table's entries stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.urls import URLResolver, get_resolver

from tests.walk import accounts, back_office, pages
from tests.walk.table import ADMIN, HELP, OFFICE, Model, Route, Who

_ARGUMENT = re.compile(r"<(?:(\w+):)?(\w+)>")
_GROUP = re.compile(r"\(\?P<(\w+)>[^()]*\)")
ANYTHING = frozenset({"*"})


def of_site() -> list[str]:
    """Every path that Django answers, each once, with `<argument>` for what is variable."""
    return list(dict.fromkeys(_paths(get_resolver().url_patterns)))


def _paths(patterns: list[Any], before: str = "") -> Iterator[str]:
    for pattern in patterns:
        path = before + _GROUP.sub(r"<\1>", str(pattern.pattern)).replace("^", "").replace("$", "")
        if isinstance(pattern, URLResolver):
            yield from _paths(pattern.url_patterns, path)
        else:
            yield path


def of_table() -> list[Route]:
    """Every entry, with those that a model of Django's admin stands for."""
    models = [entry for model in back_office.MODELS for entry in _of_model(model)]
    return [*pages.ROUTES, *accounts.ROUTES, *back_office.ROUTES, *models]


def _of_model(model: Model) -> Iterator[Route]:
    base = f"admin/{model.name.replace('.', '/')}/"
    lookers = Who(HELP.may if model.also else ADMIN.may, refusal=302, staff=403)
    told: dict[str, Any] = {
        "form": {},
        "ids": {"object_id": f"row of {model.name}"},
        "shows": model.shows,
        "writes": ANYTHING,
        "notes": model.notes,
        "because": "superusers look after rows, and see whose they are; no text of anybody",
    }
    row = base + "<path:object_id>/"
    history = OFFICE if model.history == 302 else lookers  # one that is not there is told before rights are asked for
    deleted = 302 if model.delete == 200 else model.delete
    yield Route(base, lookers, model.listed, model.listed, **told)
    yield Route(base + "add/", ADMIN, model.add, model.add, **told)
    yield Route(row + "change/", lookers, model.change, model.saved, **told)
    yield Route(row + "delete/", ADMIN, model.delete, deleted, **{**told, "form": {"post": "yes"}})
    yield Route(row + "history/", history, model.history, model.history, **told)
    yield Route(row, OFFICE, 302, 302, **told)


def address_of(route: Route, ids: dict[str, Any], query: str | None = None) -> str:
    path = _ARGUMENT.sub(lambda found: str(ids[route.ids.get(found[2], found[2])]), route.path)
    query = route.query.format(**ids) if query is None else query
    return f"/{path}" + (f"?{query}" if query else "")


def arguments_of(path: str) -> list[tuple[str, str]]:
    """Kind and name of each variable part; of one that a regular expression describes the kind is empty."""
    return [(kind or "", name) for kind, name in _ARGUMENT.findall(path)]
