"""Pages of one's own API keys. `/v1` itself is consumers: see `routing`."""

from __future__ import annotations

from django.urls import path

from chatsite.api import key_views

app_name = "api"

urlpatterns = [
    path("account/keys/", key_views.keys_page, name="keys"),
    path("account/keys/<uuid:key_id>/rename/", key_views.rename, name="rename"),
    path("account/keys/<uuid:key_id>/revoke/", key_views.revoke, name="revoke"),
]
