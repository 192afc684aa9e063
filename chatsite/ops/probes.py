"""What machines ask: /health/live, /health/ready, /metrics.

Answered before any other middleware: a probe has no session, may name any host (orchestrators call by address), and
must get its answer while Redis or Postgres is away. Also counts what Django's pages answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from prometheus_client import CONTENT_TYPE_LATEST

from chatsite.ops import health, insight, metrics


def live(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"live": True})


def ready(request: HttpRequest) -> HttpResponse:
    """Whether, for everybody; why not, and what there is, for who may see all."""
    seen = health.look()
    is_told_all = insight.may_see_all(request) or (seen.postgres.ok and insight.is_operator(request))
    told = seen.as_json() if is_told_all else seen.as_public_json()
    return JsonResponse(told, status=200 if seen.is_ready else 503)


def numbers(request: HttpRequest) -> HttpResponse:
    if not insight.may_see_all(request):
        return HttpResponse("Show METRICS_TOKEN as a bearer token.\n", status=403, content_type="text/plain")
    return HttpResponse(metrics.text(), content_type=CONTENT_TYPE_LATEST)


PROBES: dict[str, Callable[[HttpRequest], HttpResponse]] = {
    "/health/live": live,
    "/health/ready": ready,
    "/metrics": numbers,
}


class ProbeMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        probe = PROBES.get(request.path_info)
        if probe is None:
            return self._counted(request)
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(status=405, headers={"Allow": "GET, HEAD"})
        response = probe(request)
        response._has_been_logged = True  # type: ignore[attr-defined]  # not ready is an answer, not an error to log
        response["Cache-Control"] = "no-store"
        response["X-Content-Type-Options"] = "nosniff"
        response["Content-Length"] = str(len(response.content))
        return response

    def _counted(self, request: HttpRequest) -> HttpResponseBase:
        started = time.monotonic()
        response = self._get_response(request)
        method = request.method if request.method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE") else "other"
        metrics.RESPONSES.labels(method, str(response.status_code)).inc()
        metrics.RESPONSE_SECONDS.observe(time.monotonic() - started)
        return response
