"""Where `/v1` is: an ASGI route list, to stand before Django's own."""

from __future__ import annotations

from django.urls import path, re_path

from chatsite.api.consumers import ChatCompletions, Models, UnknownPath

http_urlpatterns = [
    path("v1/chat/completions", ChatCompletions.as_asgi()),
    path("v1/models", Models.as_asgi()),
    path("v1/models/<path:model>", Models.as_asgi()),
    re_path(r"^v1(?:/|$)", UnknownPath.as_asgi()),
]
