"""Pages of review: find a conversation, say why, read it; and for everybody, who opened one's own.

For whoever may not review, and for all while the policy is off, the first two do not exist: 404, signed in or not.
"""

from __future__ import annotations

from typing import cast
from uuid import UUID

import structlog
from allauth.account.adapter import get_adapter
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import DatabaseError
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_safe

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation, Feedback
from chatsite.review import actions, reports
from chatsite.review.forms import ReasonForm, SearchForm
from chatsite.review.models import AccessEvent
from chatsite.review.turns import turns_of

log = structlog.get_logger(__name__)

PAGE_ROWS = 50


@require_GET
@never_cache
def index(request: HttpRequest) -> HttpResponse:
    """Conversations by what they are, never by what is in them. Titles quote what people wrote: none is shown here, and
    none can be asked about, before a record is made."""
    rule = actions.policy_for(request.user)
    if rule is actions.Policy.OFF:
        raise Http404
    is_asked = any(name in request.GET for name in SearchForm.base_fields)
    form = SearchForm(request.GET if is_asked else None, policy=rule)
    page = None
    if form.is_bound and form.is_valid():
        found = form.conversations(actions.readable_by(request.user)).select_related("owner")
        counted = _counted(found.defer("title", "system_prompt"), rule).order_by("-updated_at", "-id")
        page = Paginator(counted, PAGE_ROWS).get_page(request.GET.get("page"))
    num_open = reports.reports_for(request.user).filter(outcome=None).count()
    context = {"form": form, "page": page, "is_any_readable": rule is actions.Policy.REASON, "num_open": num_open}
    return render(request, "review/index.html", context)


def _counted(rows: QuerySet[Conversation], rule: actions.Policy) -> QuerySet[Conversation]:
    """With the number of reports; of messages and other opinions only where all of them may be read."""
    rows = rows.annotate(num_reports=Count("messages", filter=Q(messages__feedback__is_reported=True)))
    if rule is not actions.Policy.REASON:
        return rows
    return rows.annotate(
        num_messages=Count("messages"),
        num_good=Count("messages", filter=Q(messages__feedback__rating=Feedback.Rating.GOOD)),
        num_bad=Count("messages", filter=Q(messages__feedback__rating=Feedback.Rating.BAD)),
    )


@require_http_methods(["GET", "POST"])
@never_cache
def transcript(request: HttpRequest, conversation_id: UUID) -> HttpResponse:
    """GET asks for the reason; POST records it and shows the conversation, read-only."""
    conversation = actions.conversation_for_review(request.user, conversation_id)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            opened = actions.open_transcript(
                cast(User, request.user), conversation_id, reason=form.cleaned_data["reason"], ip=_client_ip(request)
            )
        except actions.ReasonMissing as refusal:
            form.add_error("reason", str(refusal))
        except DatabaseError as error:
            log.error("access not recorded", conversation_id=str(conversation_id), reason=type(error).__name__)
            return render(request, "review/denied.html", {"conversation": conversation}, status=503)
        else:
            return render(request, "review/transcript.html", {"opened": opened, "turns": list(turns_of(opened))})
    status = 400 if request.method == "POST" else 200
    return render(request, "review/reason.html", {"conversation": conversation, "form": form}, status=status)


@require_safe
@login_required
@never_cache
def mine(request: HttpRequest) -> HttpResponse:
    """What may be read here, who opened the signed-in person's conversations, and what became of their reports."""
    owner = cast(User, request.user)
    events = AccessEvent.objects.filter(subject=owner).select_related("conversation")
    page = Paginator(events, PAGE_ROWS).get_page(request.GET.get("page"))
    reported = actions.standing_reports().filter(message__conversation__owner=owner)
    reported = reported.select_related("message__conversation", "outcome__handled_by").defer(
        "message__content", "message__reasoning", "message__conversation__system_prompt"
    )
    context = {
        "page": page,
        "policy": actions.policy(),
        "reports": reported[:PAGE_ROWS],
        "num_reports": reported.count(),
    }
    return render(request, "review/mine.html", context)


def _client_ip(request: HttpRequest) -> str | None:
    """The address as sign-in limits see it too, trusted proxies considered; None when the server cannot tell."""
    try:
        return cast(str, get_adapter(request).get_client_ip(request))
    except PermissionDenied:
        return None
