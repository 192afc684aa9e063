"""Who asks, and from where: known to the middleware, wanted deep inside where a deed is recorded.

Kept in a context variable, so that it follows a request through whatever threads answer it. Found out only when
somebody wants it: most requests record nothing, and must not cost a session.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from allauth.account.adapter import get_adapter
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from chatsite.accounts.models import User


@dataclass(frozen=True)
class Origin:
    """The request that is being answered, or the command that runs; nothing is known in a task."""

    user: User | None = None
    ip: str | None = None
    is_page: bool = False  # somebody at a browser asked, signed in or not
    route: str = ""  # the name of the page's route
    command: str = ""  # of `manage.py`, run by whoever owns the machine


NOWHERE = Origin()
_source: ContextVar[HttpRequest | Origin] = ContextVar("origin", default=NOWHERE)


def origin() -> Origin:
    """Sync: the first time in a request it may read the session and the person from Postgres."""
    source = _source.get()
    if source is NOWHERE:
        return Origin(command=_command())
    if isinstance(source, Origin):
        return source
    user = getattr(source, "user", None)  # not there yet while outer middleware works
    return Origin(
        user=cast(User, user) if user is not None and user.is_authenticated else None,
        ip=client_ip(source),
        is_page=True,
        route=(source.resolver_match and source.resolver_match.url_name) or "",
    )


def _command() -> str:
    """The name of the command that this process was started for; a server or a worker was started for none."""
    program, *words = sys.argv or [""]
    return words[0] if words and Path(program).name == "manage.py" else ""


def client_ip(request: HttpRequest) -> str | None:
    """The address as sign-in limits see it too, trusted proxies considered; None when the server cannot tell."""
    try:
        return cast(str, get_adapter(request).get_client_ip(request))
    except PermissionDenied:
        return None


@contextlib.contextmanager
def asked_by(user: User | None, ip: str | None) -> Iterator[None]:
    """What is recorded in the block was asked for by that person, from that address."""
    with _from(Origin(user, ip, command=_command())):
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
