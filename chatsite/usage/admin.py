"""The ledger in Django's admin: to read. Only the ends of answers write it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from chatsite.usage.models import UsageDay


class SourceFilter(admin.SimpleListFilter):
    """Of the sources there are; to list those in the table would mean to read all of it."""

    title = "source"
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("chat", "chat"), ("api", "API"), ("temporary", "temporary chat"), ("title", "title")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[UsageDay]) -> QuerySet[UsageDay]:
        return queryset.filter(source=self.value()) if self.value() else queryset


@admin.register(UsageDay)
class UsageDayAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    list_display = (
        *("day", "user", "model", "source", "api_key", "num_answers", "num_failed", "num_stopped"),
        *("prompt_tokens", "cached_tokens", "completion_tokens", "charged_tokens"),
    )
    list_display_links = None
    list_filter = ("day", SourceFilter, "user__groups")
    list_select_related = ("user", "api_key")
    search_fields = ("=user__username", "=user__email", "=model")
    search_help_text = "A user name, an e-mail address or a model, whole."
    date_hierarchy = "day"
    ordering = ("-day", "-pk")
    show_full_result_count = False
    list_per_page = 50
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
