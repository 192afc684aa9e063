"""Pages of links: the dialog of one conversation, one's own list, and what a link shows.

The last is the only page of the site that people see who are not signed in. It has no script, sets no cookie and, for
links that anyone may open, does not even look who asks.
"""

from __future__ import annotations

import uuid
from typing import Any, cast

from csp.constants import NONE, SELF
from csp.decorators import csp
from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST, require_safe

from chatsite.accounts.models import User
from chatsite.chat.queries import access
from chatsite.chat.views import responses
from chatsite.sharing import actions, snapshots
from chatsite.sharing.models import Share

MAX_DAYS = 3_650
PAGE_POLICY = {
    "default-src": [NONE],
    "style-src": [SELF],
    "img-src": [SELF],
    "form-action": [NONE],
    "frame-ancestors": [NONE],
    "base-uri": [NONE],
}


class ShareForm(forms.Form):
    scope = forms.ChoiceField(choices=Share.Scope.choices)
    days = forms.IntegerField(label=_("Days until it ends"), required=False, min_value=1, max_value=MAX_DAYS)
    with_thoughts = forms.BooleanField(required=False)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def share(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """GET shows the conversation's link; POST makes it, or brings it up to date."""
    conversation = access.conversation_of(request.user, conversation_id)
    form = ShareForm(request.POST or None)
    refusal: actions.ShareRefused | None = None
    if request.method == "POST" and form.is_valid():
        typed = form.cleaned_data
        try:
            actions.share(
                request.user,
                conversation_id,
                scope=typed["scope"],
                days=typed["days"],
                with_thoughts=typed["with_thoughts"],
            )
        except actions.ShareRefused as refused:
            refusal = refused
        else:
            return redirect("sharing:share", conversation_id)
    link = actions.standing_link_of(request.user, conversation)
    context: dict[str, Any] = {
        "conversation": conversation,
        "link": link,
        "address": request.build_absolute_uri(_address(link)) if link else "",
        "form": form,
        "scopes": Share.Scope.choices,
        "chosen": form["scope"].value() or (link.scope if link else Share.Scope.SIGNED_IN),
        "refusal": refusal,
    }
    status = 400 if refusal or (form.is_bound and not form.is_valid()) else 200
    return render(request, "sharing/share.html", context, status=status)


@require_GET
@responses.signed_in
def mine(request: responses.ChatRequest) -> HttpResponse:
    links = [(link, request.build_absolute_uri(_address(link))) for link in actions.links_of(request.user)]
    return render(request, "sharing/mine.html", {"links": links})


@require_POST
@responses.signed_in
def revoke(request: responses.ChatRequest, share_id: uuid.UUID) -> HttpResponse:
    link = actions.revoke(request.user, share_id)
    if request.POST.get("back") == "list":
        return redirect("sharing:mine")
    return redirect("sharing:share", link.conversation_id)


@require_safe
@csp(PAGE_POLICY)  # type: ignore[arg-type]  # it takes views with arguments all the same
def shown(request: HttpRequest, token: str) -> HttpResponse:
    """What a link shows. Whoever may not see it gets the same page as for a link that never was."""
    try:
        link = actions.public_link(token) or actions.open_link(cast(User, request.user), token)
    except Http404:
        response = render(request, "sharing/nothing.html", status=404)
    else:
        turns = list(snapshots.turns_of(link.snapshot))
        response = render(request, "sharing/shown.html", {"link": link, "turns": turns})
    response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
    response["Referrer-Policy"] = "no-referrer"
    response["Cache-Control"] = "private, no-store"
    return response


def _address(link: Share) -> str:
    return reverse("sharing:shown", args=(link.token,))
