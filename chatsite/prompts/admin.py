"""Prompts in Django's admin: staff see whose they are and unshare them; what is not shared is not shown."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from chatsite.prompts.models import PromptTemplate


@admin.register(PromptTemplate)
class PromptTemplateAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    list_display = ("name", "title", "owner", "is_shared", "updated_at")
    list_select_related = ("owner",)
    search_fields = ("=name",)
    readonly_fields = ("owner", "name", "title", "text", "updated_at")
    fields = (*readonly_fields, "is_shared")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(is_shared=True)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
