"""Pages of one's own API keys: the list with the form for a new one, a new name, and the end of one.

A new key's secret stands in the answer to the request that made it and nowhere else: no session, no cache, no redirect
carries it. So that page cannot be had again; loading it anew sends the form anew, whose token then makes nothing.
"""

from __future__ import annotations

import json
import shlex
import time
from uuid import UUID

from allauth.account import app_settings
from allauth.account.adapter import get_adapter
from allauth.account.authentication import get_authentication_records
from allauth.account.decorators import reauthentication_required
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods

from chatsite.accounts.models import ApiKey
from chatsite.api import keys
from chatsite.api.key_forms import KeyForm, NameForm
from chatsite.api.keys import KeyRefused
from chatsite.chat.views import responses


def _can_confirm(request: HttpRequest) -> bool:
    """Whether allauth can ask this person again: somebody who signs in elsewhere may have no password here."""
    return bool(get_adapter(request).get_reauthentication_methods(request.user))


@require_http_methods(["GET", "POST"])
@responses.signed_in
@reauthentication_required(allow_get=True)  # type: ignore[untyped-decorator]  # allauth has no types
@sensitive_variables("secret")
def keys_page(request: responses.ChatRequest) -> HttpResponse:
    """GET lists one's keys. POST makes one, and its answer alone shows the secret."""
    if request.method == "GET":
        return _page(request)
    form = _form(request, request.POST)
    if not form.is_valid():
        return _page(request, form, status=400)
    typed = form.cleaned_data
    try:
        _check_signed_in_lately(request)
        key, secret = keys.create(
            request.user, typed["name"], scopes=typed["scopes"], days=typed["days"], token=typed["token"]
        )
    except keys.AlreadyMade as refusal:
        return _page(request, refusal=refusal, status=refusal.http_status)
    except KeyRefused as refusal:
        form.add_error(refusal.field, refusal.message)
        return _page(request, form, status=refusal.http_status)
    return _page(request, made=key, secret=secret, example=_example(request, key, secret))


@require_http_methods(["GET", "POST"])
@responses.signed_in
def rename(request: responses.ChatRequest, key_id: UUID) -> HttpResponse:
    key = keys.key_of(request.user, key_id)
    form = NameForm(request.POST if request.method == "POST" else None, initial={"name": key.name})
    if request.method == "POST" and form.is_valid():
        try:
            keys.rename(request.user, key_id, form.cleaned_data["name"])
        except KeyRefused as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            return redirect("api:keys")
    return render(request, "api/rename.html", {"form": form, "key": key}, status=400 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def revoke(request: responses.ChatRequest, key_id: UUID) -> HttpResponse:
    """GET asks, POST revokes."""
    key = keys.key_of(request.user, key_id)
    if request.method == "GET":
        return render(request, "api/revoke.html", {"key": key})
    keys.revoke(request.user, key_id)
    return redirect("api:keys")


class SignInAgain(KeyRefused):
    """Nobody can be asked for a password that is not kept here; a fresh sign-in says as much."""

    http_status = 403

    def __init__(self) -> None:
        super().__init__(
            _("To make a key, sign out and in again, and come back within %(minutes)d minutes.")
            % {"minutes": app_settings.REAUTHENTICATION_TIMEOUT // 60}
        )


def _check_signed_in_lately(request: responses.ChatRequest) -> None:
    """Of those who cannot be asked for a password. Raises SignInAgain."""
    if _can_confirm(request):
        return
    records = get_authentication_records(request, request.user)
    if not records or time.time() - records[-1]["at"] >= app_settings.REAUTHENTICATION_TIMEOUT:
        raise SignInAgain


def _form(request: responses.ChatRequest, typed: object = None) -> KeyForm:
    return KeyForm(typed, longest=keys.longest_days(request.user))


def _page(
    request: responses.ChatRequest,
    form: KeyForm | None = None,
    *,
    status: int = 200,
    **more: object,
) -> HttpResponse:
    standings = keys.standings_of(request.user)
    context = {
        "standings": standings,
        "form": form or _form(request),
        "longest": keys.longest_days(request.user),
        **more,
    }
    return render(request, "api/keys.html", context, status=status)


def _example(request: responses.ChatRequest, key: ApiKey, secret: str) -> str:
    """A line for a shell that uses the key here."""
    bearer = shlex.quote(f"Authorization: Bearer {secret}")
    if "chat" not in key.scope_names:
        return f"curl {request.build_absolute_uri('/v1/models')} -H {bearer}"
    served = responses.served_models()
    model = settings.SMOLFLEET.default_model or (served[0].name if served else "MODEL")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})
    url = request.build_absolute_uri("/v1/chat/completions")
    return f"curl {url} -H {bearer} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
