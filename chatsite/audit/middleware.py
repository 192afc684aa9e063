"""Tells `origin` which request is being answered. Reads nothing of it: whoever records something does.

Stands behind sessions and sign-in, which it needs. Streams and `/v1` are consumers, run no middleware and record
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from chatsite.audit.origin import answering

Answer = HttpResponseBase | Awaitable[HttpResponseBase]


class OriginMiddleware:
    """For threads and for the event loop alike, so that it costs no change from one to the other."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Answer]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Answer:
        if self._is_async:
            return self._awaited(request)
        with answering(request):
            return self._get_response(request)

    async def _awaited(self, request: HttpRequest) -> HttpResponseBase:
        with answering(request):
            return await cast(Awaitable[HttpResponseBase], self._get_response(request))
