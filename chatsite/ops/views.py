"""/ops/: who waits, who works, what is degraded; for staff and operators. htmx asks for the inner part again every two
seconds."""

from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chatsite.chat.models import Generation
from chatsite.ops import health, metrics
from chatsite.rules import roles
from inference.messages.cards import WorkerCard

RECENT = timedelta(seconds=metrics.RECENT_SECONDS)


@never_cache
@require_safe
@login_required
def fleet(request: HttpRequest) -> HttpResponse:
    if not roles.may_see_fleet(request.user):
        raise PermissionDenied
    seen = health.look()
    since = metrics.first_id_since(RECENT.total_seconds())
    active = Generation.objects.filter(status=Generation.Status.ACTIVE)
    context = {
        "health": seen,
        "services": [
            ("Postgres", seen.postgres),
            ("Redis", seen.redis),
            ("Site worker", seen.site_worker),
        ],
        "workers": [
            {"card": w, "num_busy": w.num_slots - w.num_free_slots, "stuck": _is_stuck(w)} for w in seen.workers
        ],
        "active": active.order_by().values("model").annotate(number=Count("id"), eldest=Min("created_at")),
        "recent": Generation.objects.filter(id__gte=since).order_by().values("status").annotate(number=Count("id")),
        "failures": Generation.objects.filter(id__gte=since, status=Generation.Status.FAILED)
        .order_by()
        .values("error_code")
        .annotate(number=Count("id")),
        "now": timezone.now(),
    }
    is_fragment = bool(getattr(request, "htmx", False))
    return render(request, "ops/_fleet.html" if is_fragment else "ops/fleet.html", context)


def _is_stuck(worker: WorkerCard) -> bool:
    return worker.engine_idle_seconds >= health.STUCK_SECONDS
