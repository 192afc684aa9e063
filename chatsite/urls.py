"""Routes of all apps. Streams and `/v1` are consumers: see `asgi`."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from chatsite import installing, sign_in

admin.site.site_header = admin.site.site_title = settings.SMOLFLEET.site_name
# One way in: with limits, a second factor, and a list of sessions. Django's own page has none of them.
admin.site.login = sign_in.of_admin(admin.site.login)  # type: ignore[method-assign]

handler429 = "chatsite.accounts.views.too_many_requests"

urlpatterns = [
    path("", include("chatsite.chat.urls")),
    path("", include("chatsite.review.urls")),
    path("", include("chatsite.prompts.urls")),
    path("", include("chatsite.personas.urls")),
    path("", include("chatsite.sharing.urls")),
    path("", include("chatsite.transfer.urls")),
    path("", include("chatsite.usage.urls")),
    path("", include("chatsite.api.urls")),
    path("", include("chatsite.privacy.urls")),
    path("", include("chatsite.audit.urls")),
    path("", include("chatsite.ops.urls")),
    path("", include("chatsite.accounts.urls")),
    path("accounts/", include("allauth.urls")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("manifest.webmanifest", installing.manifest, name="manifest"),
    path("favicon.ico", installing.icon),
    path("sw.js", installing.service_worker, name="service-worker"),
    path("offline/", installing.offline, name="offline"),
    path("admin/password_change/", RedirectView.as_view(pattern_name="account_change_password")),
    path("admin/", admin.site.urls),
]
