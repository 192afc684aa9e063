"""What an entry of the walk's table says of a route, and what follows from it for each visitor.

To add a route: one line in `pages.py` (the site's pages), `accounts.py` (allauth's), `back_office.py` (operators,
reviewers, Django's admin) or `streams.py` (whatever is no page of Django's), with its path as the URL configuration
writes it and who may have it. The walk says which are missing, and which are there for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.walk.world import STAFF, VISITORS

LOGIN = 302  # to the sign-in; for a fragment 401 and the browser is sent there


@dataclass(frozen=True)
class Who:
    """Those who may have something, and what it says to the others."""

    may: frozenset[str]
    refusal: int = 404
    stranger: int = LOGIN
    staff: int = 0  # to staff, where that differs
    page: int = 0  # to a GET, where that differs

    def refusal_of(self, visitor: str, method: str = "get") -> int:
        if visitor == "stranger":
            return self.stranger
        if self.page and method == "get":
            return self.page
        return self.staff if self.staff and visitor in STAFF else self.refusal


def _only(*visitors: str, **refusals: int) -> Who:
    return Who(frozenset(visitors), **refusals)


EVERYBODY = _only(*VISITORS)
STRANGERS = _only("stranger", refusal=302)  # who is signed in has no business there and is led home
SIGNED_IN = _only(*VISITORS[1:])
OWNER = _only("owner")
NOBODY = _only()
REVIEWERS = _only("reviewer", "admin", stranger=404)
FLEET = _only("operator", *STAFF, refusal=403)
ANALYTICS = _only("operator", "admin", refusal=403)
AUDITORS = _only("auditor", "admin", staff=403)
OFFICE = _only(*STAFF, refusal=LOGIN)  # Django's admin, which sends the others to its sign-in
HELP = _only("helpdesk", "admin", refusal=LOGIN, staff=403)
ADMIN = _only("admin", refusal=LOGIN, staff=403)


@dataclass(frozen=True)
class Route:
    """One address, or several of the same pattern in as many entries.

    path: as the URL configuration has it, without `^` and `$`.
    get, post: the status for those who may; 405: there is no such method, for nobody.
    form: what does the deed when it is posted, with names of `World.ids` in braces; its status is `done`, and it must
        change something of the owner's when she sends it, unless `keeps`.
    empty: the status of an empty form.
    ids: what stands in the address for an argument, where it is not what `World.ids` has under the argument's name.
    shows: secrets of the owner that the others who may also see, and why (`because`).
    notes: tables in which looking at it may change a row, and why (`because`).
    writes: tables that others who may do the deed change for the owner.
    """

    path: str
    who: Who
    get: int = 200
    post: int = 405
    empty: int = 0
    form: Mapping[str, Any] | None = None
    keeps: bool = False
    ids: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    shows: frozenset[str] = frozenset()
    notes: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    because: str = ""
    csrf: bool = True  # a form without the token is refused

    def __post_init__(self) -> None:
        if (self.shows or self.notes or self.writes) and not self.because:
            raise ValueError(f"Say why {self.path} may show or change that.")

    def expected(self, visitor: str, method: str) -> set[int]:
        """The statuses that this visitor may get for GET or for POST of the form."""
        granted = self.get if method == "get" else self.post
        if granted == 405:
            return {405, self.who.refusal_of(visitor, method)} if visitor not in self.who.may else {405}
        return {granted} if visitor in self.who.may else {self.who.refusal_of(visitor, method)}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Model:
    """The pages of one model in Django's admin. Those who may: superusers, unless `also` says more.

    add, change, delete, history: the status of GET for them; `saved`: of an empty form on the page of one row.
    """

    name: str
    shows: frozenset[str] = frozenset()
    add: int = 200
    change: int = 200
    delete: int = 200
    history: int = 200
    saved: int = 200
    listed: int = 200
    also: frozenset[str] = frozenset()  # visitors who may look and change, but not add and delete
    writes: frozenset[str] = frozenset()
    notes: frozenset[str] = frozenset()  # tables in which a refusal may be recorded
