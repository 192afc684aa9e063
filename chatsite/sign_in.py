"""The one way in: what would be a second one leads to it, and a fragment's request sends the whole page there.

Knows no app. The sign-in itself is allauth's, with limits and a second factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

from allauth.account.decorators import secure_admin_login
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import resolve_url
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.views.decorators.http import require_safe

View = Callable[..., HttpResponse]


def of_admin(view: View) -> View:
    """Django's own sign-in, `view`, without its form: strangers go to the site's, staff who are signed in to the admin.

    The form would try as many passwords as somebody likes, and ask for no second factor.
    """
    return cast(View, secure_admin_login(require_safe(view)))


class FragmentMiddleware:
    """A fragment that wants a sign-in would show it in its own place, for a browser follows a redirect by itself.

    So htmx is told to load the sign-in as a page, which leads back to the page that asked. Behind django-htmx's own.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        htmx: Any = getattr(request, "htmx", None)
        if not htmx or response.status_code != 302:
            return response
        sign_in = urlsplit(response["Location"]).path
        if sign_in not in (resolve_url("account_login"), reverse("admin:login")):
            return response
        back = htmx.current_url_abs_path or "/"
        told = HttpResponse(status=401, headers={"HX-Redirect": redirect_to_login(back, sign_in).url})
        told.cookies = response.cookies
        add_never_cache_headers(told)
        patch_vary_headers(told, ("HX-Request", "Cookie"))
        return told
