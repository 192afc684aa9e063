"""Routes of all apps. Streams and `/v1` are consumers: see `asgi`."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from chatsite import installing

urlpatterns = [
    path("", include("chatsite.chat.urls")),
    path("", include("chatsite.review.urls")),
    path("", include("chatsite.prompts.urls")),
    path("", include("chatsite.sharing.urls")),
    path("", include("chatsite.transfer.urls")),
    path("", include("chatsite.ops.urls")),
    path("accounts/", include("allauth.urls")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("manifest.webmanifest", installing.manifest, name="manifest"),
    path("favicon.ico", installing.icon),
    path("sw.js", installing.service_worker, name="service-worker"),
    path("offline/", installing.offline, name="offline"),
    path("admin/", admin.site.urls),
]
