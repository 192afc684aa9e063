"""What makes the site one that can be installed: its manifest, its service worker, and the page shown while offline.

The worker keeps that page alone, with what it looks like; it is another one as soon as those or the language change.
Open to everybody, for a browser asks for them without a session. Knows no app.
"""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

GROUND = "#e8ecf1"  # of the light theme: a manifest names one colour, and pages then say theirs
ICONS = (("192", "192x192", "any"), ("512", "512x512", "any"), ("maskable-512", "512x512", "maskable"))


@require_GET
def manifest(request: HttpRequest) -> HttpResponse:
    name = settings.SMOLFLEET.site_name
    icons = [
        {"src": static(f"icons/{file}.png"), "sizes": sizes, "type": "image/png", "purpose": purpose}
        for file, sizes, purpose in ICONS
    ]
    scalable = {"src": static("favicon.svg"), "sizes": "any", "type": "image/svg+xml", "purpose": "any"}
    told = {
        "id": "/",
        "name": name,
        "short_name": name[:12].strip(),
        "description": _("Chat with the models of this site"),
        "lang": request.LANGUAGE_CODE,
        "start_url": reverse("chat:home"),
        "scope": "/",
        "display": "standalone",
        "background_color": GROUND,
        "theme_color": GROUND,
        "icons": [scalable, *icons],
    }
    return JsonResponse(told, content_type="application/manifest+json")


@require_GET
def icon(request: HttpRequest) -> HttpResponse:
    """For pages that name none, as the admin's."""
    return redirect(static("favicon.svg"))


@never_cache
@require_GET
def service_worker(request: HttpRequest) -> HttpResponse:
    """At the root, for its place bounds what it may answer."""
    kept = [reverse("offline"), static("css/app.css"), static("js/theme.js"), static("favicon.svg")]
    return render(request, "installed/sw.js", {"kept": kept}, content_type="text/javascript; charset=utf-8")


@never_cache
@require_GET
def offline(request: HttpRequest) -> HttpResponse:
    return render(request, "installed/offline.html")
