"""People and their API keys in Django's admin. A key's secret is known to nobody: only its first characters show."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import NestedObjects
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User


class ApiKeyInline(admin.TabularInline):  # type: ignore[type-arg]  # Django itself is not generic
    model = ApiKey
    extra = 0
    can_delete = False
    show_change_link = True
    fields = readonly_fields = ("shown", "name", "created_at", "last_used_at", "expires_at", "revoked_at")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(User)
class UserAdmin(DjangoUserAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    inlines = (ApiKeyInline,)
    show_full_result_count = False

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj is not None else ()

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """What goes with these people, counted: Django's own list would print the text of every message."""
        collector = NestedObjects(using=router.db_for_write(User))
        collector.collect(objs)
        counts = {
            str(rows[0]._meta.verbose_name_plural): len(rows) for rows in map(list, collector.model_objs.values())
        }
        return [user.get_username() for user in objs], counts, set(), [str(row.pk) for row in collector.protected]


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    """Keys are made by `manage.py createapikey`; here they are named, given an end, or revoked at once."""

    list_display = ("shown", "name", "user", "created_at", "last_used_at", "expires_at", "revoked_at")
    list_filter = (("revoked_at", admin.EmptyFieldListFilter), "created_at")
    list_select_related = ("user",)
    search_fields = ("=shown", "name", "user__username")
    show_full_result_count = False
    fields = ("user", "shown", "name", "created_at", "last_used_at", "expires_at", "revoked_at")
    readonly_fields = ("user", "shown", "created_at", "last_used_at", "revoked_at")
    actions = ("revoke",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return not lookup.startswith("sha256") and super().lookup_allowed(lookup, value, request)  # type: ignore[arg-type]

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        rows = queryset.filter(revoked_at=None)
        for key in rows:
            self.log_change(request, key, "Revoked.")
        number = rows.update(revoked_at=timezone.now())
        self.message_user(request, f"{number} key(s) revoked.", messages.SUCCESS)
