"""The second factor that the rules ask of people: until they have one they get the pages on which it is set up, alone.

Asked for by the site, for everybody or for staff, or by a group. Nothing is remembered between two requests, so that a
change of the rules counts at the next page. Keys of the API are not asked: a program has no phone, and its key is a
secret of its own. The pages are allauth's; streams ask `is_missing` by `chat.access.may_enter`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatsite.accounts import sealing
from chatsite.accounts.models import User
from chatsite.rules.effective import rules_of
from chatsite.rules.models import GroupRules, SiteRules

# Open without a factor: setting one up, signing out, changing language, what a browser asks for by itself, and links
# that anyone may open; those for people of the site ask `may_enter` themselves.
OPEN = ("/accounts/", "/i18n/", "/manifest.webmanifest", "/favicon.ico", "/sw.js", "/offline/", "/s/")
CAME_FOR = "second_factor_came_for"  # in the session: the path that somebody wanted to see when they were sent off


def is_asked_of(user: User) -> bool:
    """Whether this person must have a second factor, and so may not take it away."""
    return rules_of(user).requires_two_factor


def is_missing(user: User) -> bool:
    """Whether the rules ask this person for a second factor that they do not have.

    It is asked for every page and stream, so one query answers where nothing is asked of anybody, or they have one.
    """
    return _may_be_missing(user) and is_asked_of(user)


def _may_be_missing(user: User) -> bool:
    """Whether they have no factor, and anything is asked of people at all that could be meant for them."""
    factors = Authenticator.objects.filter(user=OuterRef("pk")).exclude(type=Authenticator.Type.RECOVERY_CODES)
    groups = GroupRules.objects.filter(group__user=OuterRef("pk"), requires_two_factor=True)
    sites = SiteRules.objects.exclude(two_factor=SiteRules.TwoFactor.NOBODY)
    return User.objects.filter(Exists(groups) | Exists(sites), ~Exists(factors), pk=user.pk).exists()


class SecondFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth has no types
    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "cannot_delete_authenticator": gettext_lazy(
            "The rules of this site ask you for a second factor, so you cannot take it away. "
            "If your device is lost or changes, an admin of this site can do so, and you set up a new one."
        ),
    }

    def encrypt(self, text: str) -> str:
        return sealing.seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        return sealing.unseal(encrypted_text)

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        return not is_asked_of(authenticator.user)

    def get_totp_label(self, user: Any) -> str:
        """The name that people sign in with: an app's list would else show the mail address."""
        return str(user.get_username())


class SecondFactorMiddleware:
    """Sends who must have a factor and has none to the page that sets it up, and keeps where they wanted to go."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(OPEN) or not request.user.is_authenticated:
            return self._get_response(request)
        if is_missing(request.user):
            response = _sent_to_setup(request)
            add_never_cache_headers(response)
            return response
        request.session.pop(CAME_FOR, None)  # they are here again
        return self._get_response(request)


def _sent_to_setup(request: HttpRequest) -> HttpResponse:
    setup = reverse("mfa_activate_totp")
    htmx = getattr(request, "htmx", None)
    if htmx:
        request.session[CAME_FOR] = _of_this_site(htmx.current_url_abs_path)
        return HttpResponse(status=401, headers={"HX-Redirect": setup})
    if request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate" and request.accepts("text/html"):
        request.session[CAME_FOR] = _of_this_site(request.get_full_path() if request.method in ("GET", "HEAD") else "/")
        return redirect(setup)
    told = _("Set up your second factor first.")  # a script of a page, or a program with a person's cookie
    return HttpResponse(f"{told}\n", status=401, content_type="text/plain; charset=utf-8")


def _of_this_site(path: str | None) -> str:
    """The path, or the start page for one that a browser takes for another site: `//elsewhere.example/`."""
    return path if path and url_has_allowed_host_and_scheme(path, allowed_hosts=None) else "/"
