"""Signing in where too many tries failed, ending one of one's sessions, choosing a time zone; the rest is allauth's."""

from __future__ import annotations

from typing import cast

from allauth.account.views import LoginView, ReauthenticateView
from allauth.usersessions.models import UserSession
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from chatsite.accounts import sessions, time_zones
from chatsite.accounts.models import User

RETRY_SECONDS = 60  # allauth's other limits: most are of a minute, and none says when it has room


class _Waiting:
    """The page with what was typed, and for programs the wait as a header, where a try was refused unlooked at."""

    request: HttpRequest

    def form_invalid(self, form: Form) -> HttpResponse:
        response: HttpResponse = super().form_invalid(form)  # type: ignore[misc]
        if seconds := getattr(self.request, "sign_in_wait_seconds", 0):
            response.status_code = 429
            response["Retry-After"] = str(seconds)
        return response


class SignInView(_Waiting, LoginView):  # type: ignore[misc]  # allauth has no types
    pass


class ConfirmView(_Waiting, ReauthenticateView):  # type: ignore[misc]
    pass


def too_many_requests(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """What allauth answers where one of its own limits is reached; found by its name in `chatsite.urls`."""
    response = render(request, "429.html", status=429)
    response["Retry-After"] = str(RETRY_SECONDS)
    return response


@require_POST
@login_required
def end_session(request: HttpRequest, session_id: int) -> HttpResponse:
    """End one session of one's own. The one that asks is ended by signing out, which this leads to."""
    session = get_object_or_404(UserSession, pk=session_id, user=cast(User, request.user))
    if session.is_current():
        return redirect("account_logout")
    sessions.end([session])
    messages.success(request, _("That session has ended."))
    return redirect("usersessions_list")


@never_cache
@require_http_methods(["GET", "POST"])
@login_required
def time_zone(request: HttpRequest) -> HttpResponse:
    """Choose in which zone one's days and times are."""
    user = cast(User, request.user)
    wanted = request.POST.get("zone", "")
    if request.method == "POST" and (not wanted or time_zones.known(wanted)):
        time_zones.choose(user, wanted)
        messages.success(request, _("Your time zone is saved."))
        return redirect("accounts:time_zone")
    context = {
        "zones": [*sorted(name for name in time_zones.names() if "/" in name and not name.startswith("Etc/")), "UTC"],
        "chosen": time_zones.known(user.time_zone),
        "refused": wanted[:60],
        "now": timezone.now(),
        "zone": timezone.get_current_timezone_name(),
    }
    return render(request, "account/time_zone.html", context, status=400 if wanted else 200)
