"""What every template may use: `site`, the site's own settings."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest


def site(request: HttpRequest) -> dict[str, object]:
    return {"site": settings.SMOLFLEET}
