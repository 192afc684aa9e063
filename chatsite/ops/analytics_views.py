"""/ops/analytics/: what is used and how well it works, in numbers and bars; and its daily sums as a file.

For operators: it names people, so `is_staff` is not enough. No text and no title of a conversation is anywhere in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import cast

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from chatsite import sheets
from chatsite.accounts.models import User
from chatsite.audit.log import record
from chatsite.audit.models import Action
from chatsite.ops import analytics, charts
from chatsite.ops.analytics import Period, UnknownPeriod, Used
from chatsite.rules import roles

View = Callable[[HttpRequest], HttpResponse]
COLUMNS = (
    *("day", "model", "source", "people", "answers", "failed", "stopped"),
    *("tokens_read", "tokens_cached", "tokens_written", "decode_seconds"),
)


def _for_operators(view: View) -> View:
    @never_cache
    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if not request.user.is_authenticated:
            return redirect_to_login(reverse("ops:analytics"))
        if not roles.may_see_analytics(request.user):
            raise PermissionDenied
        with timezone.override(timezone.get_default_timezone()):  # days are the ledger's, whoever looks
            return view(request)

    return checked


@require_safe
@_for_operators
def page(request: HttpRequest) -> HttpResponse:
    """A period that is none is refused in a sentence, above the numbers of the usual one."""
    refusal = ""
    try:
        period = Period.of(request.GET.get("days"))
    except UnknownPeriod as error:
        refusal, period = str(error), Period.of(None)
    report = analytics.report(period)
    context = {
        "refusal": refusal,
        "choices": analytics.DAYS,
        "report": report,
        "charts": _charts(report.days),
        "parts": [("Where from", "Source", report.sources), ("Groups", "Group", report.groups)],
        "max_people": analytics.MAX_PEOPLE,
        "timed_answers": analytics.TIMED_ANSWERS,
        "examined_answers": analytics.EXAMINED_ANSWERS,
        "read_opinions": analytics.READ_OPINIONS,
    }
    return render(request, "ops/analytics.html", context, status=400 if refusal else 200)


@require_POST
@_for_operators
def days_as_csv(request: HttpRequest) -> HttpResponse:
    """One row for each day, model and source. Given only when it is recorded who took it."""
    try:
        period = Period.of(request.POST.get("days"))
    except UnknownPeriod as refusal:
        return HttpResponse(f"{refusal}\n", status=400, content_type="text/plain; charset=utf-8")
    with transaction.atomic():
        record(
            Action.DATA_EXPORTED,
            target="analytics",
            detail={"first": period.first.isoformat(), "last": period.last.isoformat()},
            actor=cast(User, request.user),
        )
        text = _csv(period)
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    name = f"analytics {period.first:%Y-%m-%d} {period.last:%Y-%m-%d}.csv"
    response["Content-Disposition"] = content_disposition_header(True, name) or ""
    return response


def _csv(period: Period) -> str:
    rows: list[tuple[object, ...]] = [COLUMNS]
    for day, source, used in analytics.by_day_model_and_source(period):
        counts = (used.num_people, used.num_answers, used.num_failed, used.num_stopped)
        tokens = (used.read_tokens, used.cached_tokens, used.completion_tokens)
        rows.append((day, used.name, source, *counts, *tokens, round(used.decode_seconds, 3)))
    return sheets.lines(rows)


def _charts(days: list[Used]) -> list[charts.Chart]:
    labels = [day.name for day in days]
    return [
        charts.stacked("People who asked something", labels, [("People", [day.num_people for day in days])]),
        charts.stacked(
            "Answers",
            labels,
            [
                ("Done", [day.num_done for day in days]),
                ("Stopped", [day.num_stopped for day in days]),
                ("Failed", [day.num_failed for day in days]),
            ],
        ),
        charts.stacked(
            "Tokens",
            labels,
            [
                ("Written", [day.completion_tokens for day in days]),
                ("Read", [day.read_tokens for day in days]),
                ("Cached", [day.cached_tokens for day in days]),
            ],
        ),
    ]
