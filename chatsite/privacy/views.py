"""Pages of one's own data: what there is of it, a copy to take away, and the end of the account.

The copy is asked for by a form, so that no other site's link makes a browser fetch it. Before an account goes its owner
shows once more who they are: by password, second factor or a mailed code; who has none of these and signs in through
another site, by having done so just now.
"""

from __future__ import annotations

import time

from allauth.account import app_settings
from allauth.account.adapter import get_adapter
from allauth.account.authentication import get_authentication_records
from allauth.account.decorators import reauthentication_required
from django.contrib.auth import logout
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET, require_http_methods, require_POST, require_safe

from chatsite.audit import log as audit
from chatsite.audit.models import Action
from chatsite.chat.queries import retention
from chatsite.chat.views import responses
from chatsite.privacy import archive, erasure, holdings
from chatsite.privacy.forms import DeletionForm
from chatsite.rules import effective

LEAVE_NOTHING = '"cookies", "storage"'  # drafts and the like, which the chat keeps in the browser


@require_GET
@responses.signed_in
def mine(request: responses.ChatRequest) -> HttpResponse:
    context = {
        "holdings": holdings.of(request.user),
        "rule": retention.rule_in_words(effective.rules_of(request.user).retention_days),
        "audit_days": effective.site_rules().audit_days,
    }
    return render(request, "privacy/mine.html", context)


@require_POST
@responses.signed_in
def download(request: responses.ChatRequest) -> HttpResponse:
    audit.record(Action.DATA_EXPORTED, actor=request.user)
    zipped = archive.pieces(request.user, request.build_absolute_uri("/").rstrip("/"))
    response = StreamingHttpResponse(zipped, content_type="application/zip")
    name = archive.file_name(request.user)
    response["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    response["X-Content-Type-Options"] = "nosniff"
    return response  # type: ignore[return-value]  # a response all the same


@require_http_methods(["GET", "POST"])
@responses.signed_in
def delete(request: responses.ChatRequest) -> HttpResponse:
    """GET tells what goes and asks; POST deletes."""
    if not get_adapter(request).get_reauthentication_methods(request.user) and not _has_just_signed_in(request):
        return _sign_in_again(request)
    response: HttpResponse = _delete(request)
    return response


@reauthentication_required  # type: ignore[untyped-decorator]  # allauth has no types
def _delete(request: responses.ChatRequest) -> HttpResponse:
    user = request.user
    form = DeletionForm(request.POST if request.method == "POST" else None, user=user)
    refusal = erasure.refusal(user)
    if request.method == "POST" and not refusal and form.is_valid():
        try:
            erasure.erase(user, user)
        except erasure.ErasureRefused as refused:
            refusal = refused
        else:
            request.session.flush()  # not `logout`, which would tell others of a person who is no more
            response = redirect("privacy:gone")
            response["Clear-Site-Data"] = LEAVE_NOTHING
            return response
    status = 200 if request.method == "GET" else 409 if refusal else 400
    context = {"form": form, "refusal": refusal, "holdings": holdings.of(user)}
    return render(request, "privacy/delete.html", context, status=status)


def _has_just_signed_in(request: HttpRequest) -> bool:
    signed_in_at = max((record["at"] for record in get_authentication_records(request, request.user)), default=0.0)
    return bool(time.time() - signed_in_at < app_settings.REAUTHENTICATION_TIMEOUT)


def _sign_in_again(request: responses.ChatRequest) -> HttpResponse:
    if request.method == "POST" and "again" in request.POST:
        logout(request)
        return redirect_to_login(reverse("privacy:delete"))
    return render(request, "privacy/again.html", status=200 if request.method == "GET" else 403)


@require_safe
def gone(request: HttpRequest) -> HttpResponse:
    """The last page, for somebody who is nobody here any more."""
    return render(request, "privacy/gone.html")
