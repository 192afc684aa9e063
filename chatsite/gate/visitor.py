"""Who is behind an ASGI connection, and from where: found out without a body, and at most once a request."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, parse_cookie
from django.utils.module_loading import import_string

from chatsite.audit.origin import client_ip
from chatsite.chat.queries import access
from chatsite.chat.streams.follow import in_thread
from chatsite.chat.streams.language import language_of

Scope = dict[str, Any]


class Visitor:
    def __init__(self, scope: Scope) -> None:
        self._headers: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            key, text = name.lower(), value.decode("latin-1")
            between = "; " if key == b"cookie" else ","  # what came twice is joined as Django joins it
            self._headers[key] = f"{self._headers[key]}{between}{text}" if key in self._headers else text
        self._scope = scope
        self._is_known: bool | None = None

    def header(self, name: bytes) -> str:
        return self._headers.get(name, "")

    @property
    def address(self) -> str:
        """As the limits of sign-in see it, trusted proxies considered."""
        peer = str((self._scope.get("client") or [""])[0])
        request = HttpRequest()
        request.META = {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": self.header(b"x-forwarded-for")}
        try:
            return client_ip(request) or peer
        except ImproperlyConfigured:  # fewer proxies than PROXY_COUNT have written down whom they saw
            return peer

    @property
    def language(self) -> str:
        return language_of({**self._scope, "cookies": self._cookies()})

    async def is_known(self) -> bool:
        """Whether somebody is signed in who may enter.

        Raises:
            DatabaseError: that cannot be found out just now.
        """
        if self._is_known is None:
            key = self._cookies().get(settings.SESSION_COOKIE_NAME, "")
            self._is_known = bool(key) and await in_thread(_may_enter, key)
        return self._is_known

    def _cookies(self) -> dict[str, str]:
        return parse_cookie(self.header(b"cookie"))


def _may_enter(session_key: str) -> bool:
    request = HttpRequest()
    request.session = import_string(f"{settings.SESSION_ENGINE}.SessionStore")(session_key)
    return access.may_enter(get_user(request))
