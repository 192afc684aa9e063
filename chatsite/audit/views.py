"""Pages of the log: all of it for auditors, and for everybody what concerns them. Reading changes nothing.

An auditor is who holds the permission. Staff without it are told so; for others the page does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from chatsite.accounts.models import User
from chatsite.audit import log, sheet, telling
from chatsite.audit.forms import FilterForm
from chatsite.audit.models import Action, AuditEntry

PERMISSION = "audit.view_auditentry"
PAGE_ROWS = 50

View = Callable[[HttpRequest], HttpResponse]


@dataclass(frozen=True)
class Row:
    entry: AuditEntry
    lines: list[str]
    ip: str | None


@dataclass(frozen=True)
class Page:
    rows: list[Row]
    newest: str  # query string of the first page; empty: this is it
    older: str  # of the next one; empty: this is the last


def _for_auditors(view: View) -> View:
    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if not request.user.is_authenticated:
            return redirect_to_login(reverse("audit:index"))
        if not request.user.has_perm(PERMISSION):
            if request.user.is_staff:
                raise PermissionDenied
            raise Http404
        return view(request)

    return checked


@require_safe
@never_cache
@_for_auditors
def index(request: HttpRequest) -> HttpResponse:
    form = FilterForm(request.GET)
    if not form.is_valid():
        return render(request, "audit/index.html", {"form": form}, status=400)
    page = _page(request, form.entries(), form.asked())
    return render(request, "audit/index.html", {"form": form, "page": page, "asked": form.asked()})


@require_POST
@never_cache
@_for_auditors
def as_csv(request: HttpRequest) -> HttpResponse:
    """Everything the filter finds. Given only when it is recorded who took it."""
    form = FilterForm(request.POST)
    if not form.is_valid():
        return render(request, "audit/index.html", {"form": form}, status=400)
    entry = log.record(Action.DATA_EXPORTED, target="audit log", detail=form.asked())
    response = StreamingHttpResponse(
        sheet.pieces(form.entries().filter(pk__lt=entry.pk)), content_type="text/csv; charset=utf-8"
    )
    name = f"audit {timezone.localdate():%Y-%m-%d}.csv"
    response["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    response["X-Content-Type-Options"] = "nosniff"
    return response  # type: ignore[return-value]  # a response all the same


@require_safe
@never_cache
@login_required
def mine(request: HttpRequest) -> HttpResponse:
    """What the signed-in person did with their account, and what others did to it. Where from is told of oneself and of
    failed sign-ins: the addresses of others are their own."""
    user = cast(User, request.user)
    found = AuditEntry.objects.filter(Q(actor=user, subject_name="") | Q(subject=user)).order_by("-id")
    return render(request, "audit/mine.html", {"page": _page(request, found, {}, reader=user)})


def _page(
    request: HttpRequest, found: QuerySet[AuditEntry], asked: dict[str, Any], *, reader: User | None = None
) -> Page:
    """The newest entries, or those older than the one that the address names. Raises Http404 for none that there is."""
    before = request.GET.get("before")
    if before:
        try:
            found = found.filter(pk__lt=UUID(before))
        except ValueError as error:
            raise Http404 from error
    entries = list(found[: PAGE_ROWS + 1])
    shown = entries[:PAGE_ROWS]
    return Page(
        rows=[Row(entry, telling.lines_of(entry), entry.ip if _may_see_ip(reader, entry) else None) for entry in shown],
        newest=f"?{urlencode(asked)}" if before else "",
        older=f"?{urlencode({**asked, 'before': str(shown[-1].pk)})}" if len(entries) > PAGE_ROWS else "",
    )


def _may_see_ip(reader: User | None, entry: AuditEntry) -> bool:
    return reader is None or entry.actor_id == reader.pk or entry.action == Action.SIGN_IN_FAILED
