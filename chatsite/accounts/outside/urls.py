"""Where an OpenID sign-in begins and comes back to. allauth includes it; the names are those its provider reverses."""

from __future__ import annotations

from django.urls import path

from chatsite.accounts.outside import openid
from chatsite.outside_config import OPENID_ID

urlpatterns = [
    path(f"{OPENID_ID}/login/", openid.login, name="openid_connect_login"),
    path(f"{OPENID_ID}/login/callback/", openid.callback, name="openid_connect_callback"),
]
