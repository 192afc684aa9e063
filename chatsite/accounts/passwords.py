"""Where passwords are switched off (`PASSWORD_SIGN_IN`): nobody signs in with one, and no page offers to set one.

They stay in the database, `manage.py changepassword` still sets them, and count again once they are switched on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render

View = Callable[..., HttpResponseBase]


class PasswordGate:
    """The first of the authentication backends: it lets nobody in, and where passwords are off stops the others, too.

    So it holds for whichever form somebody finds. It knows no people, and is therefore asked nothing else.
    """

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> None:
        if "password" in credentials and not settings.SMOLFLEET.password_sign_in:
            raise PermissionDenied


def where_used(view: View) -> View:
    """`view` of allauth, or a page that says why there is none."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if settings.SMOLFLEET.password_sign_in:
            return view(request, *args, **kwargs)
        return render(request, "account/no_passwords.html", status=403)

    return guarded
