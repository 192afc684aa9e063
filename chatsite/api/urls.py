"""Pages of the API app: none. `/v1` is answered by consumers, see `routing`."""

from __future__ import annotations

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
