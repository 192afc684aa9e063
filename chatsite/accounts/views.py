"""Ending one of one's sessions. The list, and ending all others, are allauth's own page."""

from __future__ import annotations

from typing import cast

from allauth.usersessions.models import UserSession
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from chatsite.accounts import sessions
from chatsite.accounts.models import User


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
