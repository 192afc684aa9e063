"""Who asks, and from where: known to the middleware, wanted deep inside where a deed is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from chatsite.accounts.models import User


@dataclass(frozen=True)
class Origin:
    """The request that is being answered; both unknown in a task or a command."""

    user: User | None = None
    ip: str | None = None


NOBODY = Origin()
_origin: ContextVar[Origin] = ContextVar("origin", default=NOBODY)


def origin() -> Origin:
    return _origin.get()


@contextlib.contextmanager
def asked_by(user: User | None, ip: str | None) -> Iterator[None]:
    """What is recorded in the block was asked for by that person, from that address."""
    token = _origin.set(Origin(user, ip))
    try:
        yield
    finally:
        _origin.reset(token)
