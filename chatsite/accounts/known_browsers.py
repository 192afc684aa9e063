"""Which browsers have signed in to which accounts before: a signed cookie, set at every sign-in.

It lets nobody in. It only says that tries from there count by themselves (`attempts`), so that others who guess cannot
keep an account's owner out. It names no account, outlives signing out, and counts for a year.
"""

from __future__ import annotations

import secrets

from allauth.account.internal.userkit import get_user_by_username
from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponseBase
from django.utils.crypto import salted_hmac

from chatsite.accounts.models import User

SALT = "chatsite.known-browser"
MAX_ACCOUNTS = 4  # of one browser; the one that signed in longest ago is forgotten
AGE_SECONDS = 365 * 86_400
MAX_CHARS = 2_000


def cookie_name() -> str:
    return "__Host-known" if settings.BEHIND_TLS else "known"


def mark_of(request: HttpRequest, name: str) -> str:
    """A name for this browser at that account, which it has signed in to before; "" where it has not."""
    if request.user.is_authenticated:
        return f"session:{request.user.pk}" if request.user.get_username() == name else ""
    marks = _read(request)
    user = get_user_by_username(name) if marks else None
    return marks.get(_account(user), "") if user is not None else ""


def remember(request: HttpRequest, response: HttpResponseBase, user: User) -> None:
    """It has signed in to `user`'s account now."""
    marks = _read(request)
    account = _account(user)
    mark = marks.pop(account, "") or secrets.token_hex(8)
    marks = {**dict(list(marks.items())[-MAX_ACCOUNTS + 1 :]), account: mark}
    response.set_cookie(
        cookie_name(),
        signing.dumps(marks, salt=SALT),
        max_age=AGE_SECONDS,
        secure=settings.BEHIND_TLS,
        httponly=True,
        samesite="Lax",
    )


def _read(request: HttpRequest) -> dict[str, str]:
    value = request.COOKIES.get(cookie_name(), "")
    if not value or len(value) > MAX_CHARS:
        return {}
    try:
        marks: dict[str, str] = signing.loads(value, salt=SALT, max_age=AGE_SECONDS)
    except signing.BadSignature:
        return {}
    return marks


def _account(user: User) -> str:
    return salted_hmac(SALT, str(user.pk)).hexdigest()[:16]
