"""What every template may use: `site`, the site's own settings."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from django.utils.translation import gettext_noop

# The site's own ideas for a first message, which templates translate; an operator's stand as they are written.
gettext_noop("Explain how a hash map works, with a small example")
gettext_noop("Write a polite note that moves a meeting to Friday")
gettext_noop("Compare tea and coffee in a table")


def site(request: HttpRequest) -> dict[str, object]:
    return {"site": settings.SMOLFLEET}
