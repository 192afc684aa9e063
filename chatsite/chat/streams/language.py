"""The language of whoever asks, for code that no middleware of Django's runs before: the streams' consumers.

A page and its streams speak alike, because both follow the cookie, then the browser's list, then the site's own.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils import translation


def language_of(scope: dict[str, Any]) -> str:
    """The code of the language for the person behind an ASGI connection. Its cookies are read already."""
    request = HttpRequest()
    request.COOKIES = scope.get("cookies", {})
    accepted = dict(scope.get("headers", ())).get(b"accept-language", b"").decode("latin-1")
    request.META["HTTP_ACCEPT_LANGUAGE"] = accepted
    return translation.get_language_from_request(request)
