"""Access records in Django's admin: to read. They quote no conversation."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from chatsite.review.models import AccessEvent


@admin.register(AccessEvent)
class AccessEventAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    list_display = ("at", "actor_name", "subject", "conversation_key", "reason", "ip")
    list_filter = ("at",)
    list_select_related = ("subject",)
    search_fields = ("=actor_name", "=subject__username", "=conversation_key")
    show_full_result_count = False
    fields = readonly_fields = ("at", "actor_name", "subject", "conversation_key", "reason", "ip")
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
