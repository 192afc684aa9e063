"""Routes of all apps. Streams and `/v1` are consumers: see `asgi`."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("chatsite.chat.urls")),
    path("", include("chatsite.review.urls")),
    path("", include("chatsite.ops.urls")),
    path("accounts/", include("allauth.urls")),
    path("admin/", admin.site.urls),
]
