"""Personas in Django's admin: staff see whose they are and unshare them; what is not shared is not shown."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from chatsite.personas.models import Persona


@admin.register(Persona)
class PersonaAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    list_display = ("name", "line", "owner", "model", "is_shared", "updated_at")
    list_select_related = ("owner",)
    search_fields = ("name",)
    fields = (
        *("owner", "name", "line", "model", "system_prompt", "thinking", "tools", "thinking_budget"),
        *("temperature", "top_p", "max_tokens", "updated_at", "is_shared"),
    )
    readonly_fields = fields[:-1]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(is_shared=True)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
