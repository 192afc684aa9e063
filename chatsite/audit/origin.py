"""Who asks, and from where: known to the middleware, wanted deep inside where a deed is recorded.

Kept in a context variable, so that it follows a request through whatever threads answer it. Found out only when
somebody wants it: most requests record nothing, and must not cost a session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

from allauth.account.adapter import get_adapter
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from chatsite.accounts.models import User


@dataclass(frozen=True)
class Origin:
    """The request that is being answered; nothing is known in a task or a command."""

    user: User | None = None
    ip: str | None = None
    is_page: bool = False  # somebody at a browser asked, signed in or not
    route: str = ""  # the name of the page's route


NOWHERE = Origin()
_source: ContextVar[HttpRequest | Origin] = ContextVar("origin", default=NOWHERE)


def origin() -> Origin:
    """Sync: the first time in a request it may read the session and the person from Postgres."""
    source = _source.get()
    if isinstance(source, Origin):
        return source
    user = getattr(source, "user", None)  # not there yet while outer middleware works
    return Origin(
        user=cast(User, user) if user is not None and user.is_authenticated else None,
        ip=client_ip(source),
        is_page=True,
        route=(source.resolver_match and source.resolver_match.url_name) or "",
    )


def client_ip(request: HttpRequest) -> str | None:
    """The address as sign-in limits see it too, trusted proxies considered; None when the server cannot tell."""
    try:
        return cast(str, get_adapter(request).get_client_ip(request))
    except PermissionDenied:
        return None


@contextlib.contextmanager
def asked_by(user: User | None, ip: str | None) -> Iterator[None]:
    """What is recorded in the block was asked for by that person, from that address."""
    with _from(Origin(user, ip)):
        yield


@contextlib.contextmanager
def answering(request: HttpRequest) -> Iterator[None]:
    """What is recorded in the block was asked for by this request."""
    with _from(request):
        yield


@contextlib.contextmanager
def _from(source: HttpRequest | Origin) -> Iterator[None]:
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)
