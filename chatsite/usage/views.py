"""One's own usage: what is left, what was used, and the rows of the ledger to take along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chatsite import sheets
from chatsite.accounts.models import User
from chatsite.usage import drawing, quotas, summary
from chatsite.usage.calendar import day_of
from chatsite.usage.models import UsageDay

SOURCES = {
    "chat": _("Chats"),
    "temporary": _("Temporary chats"),
    "api": _("API"),
    "title": _("Titles of chats"),
}
COLUMNS = (
    *("day", "model", "source", "api_key", "num_answers", "num_failed", "num_stopped"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "charged_tokens", "decode_seconds"),
)


@never_cache
@require_safe
@login_required
def mine(request: HttpRequest) -> HttpResponse:
    user = cast(User, request.user)
    found = summary.of(user, day_of(timezone.now()))
    standing = quotas.standing(user)
    site_zone = timezone.get_default_timezone_name()
    context: dict[str, Any] = {
        "own": (standing.day, standing.month),
        "pools": standing.pools,
        "periods": (
            (_("Today"), found.today),
            (_("This month"), found.this_month),
            (_("Last 30 days"), found.recent),
        ),
        "tables": (
            (_("Model"), found.models),
            (_("Source"), [(SOURCES.get(name, name), sums) for name, sums in found.sources]),
            (_("API key"), [(name or _("Deleted or unknown keys"), sums) for name, sums in found.keys]),
        ),
        "heat": found.heat,
        "drawing": drawing.drawn(found.heat),
        "has_used": UsageDay.objects.filter(user=user).exists(),
        "other_zone": site_zone if site_zone != timezone.get_current_timezone_name() else "",
        "num_conversations": user.conversations.count(),
    }
    return render(request, "usage/mine.html", context)


@never_cache
@require_safe
@login_required
def mine_as_csv(request: HttpRequest) -> HttpResponse:
    """All rows of one's own ledger, the newest day first."""
    found = UsageDay.objects.filter(user=cast(User, request.user)).select_related("api_key")
    rows: list[Sequence[object]] = [COLUMNS]
    for row in found.order_by("-day", "model", "source", "pk"):
        rows.append([getattr(row, name) if name != "api_key" else str(row.api_key or "") for name in COLUMNS])
    name = f"usage-{day_of(timezone.now()):%Y-%m-%d}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return HttpResponse(sheets.lines(rows), content_type="text/csv; charset=utf-8", headers=headers)
