"""People, their addresses, sessions, outside sign-ins and API keys in Django's admin.

No secret shows: of a key its first characters alone, of a second factor nothing but that there is one. Who may change
what is somebody's is decided by `rights`.
"""

from __future__ import annotations

from typing import Any

from allauth.account.admin import EmailAddressAdmin
from allauth.account.models import EmailAddress
from allauth.mfa import signals as mfa_signals
from allauth.mfa.models import Authenticator
from allauth.socialaccount.admin import SocialAccountAdmin
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions.models import UserSession
from django.contrib import admin, messages
from django.contrib.admin.utils import NestedObjects
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.db import router
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from chatsite.accounts import sessions
from chatsite.accounts.guarding import GuardedAdmin
from chatsite.accounts.models import SCOPES, ApiKey, User

# allauth's own pages of these show a factor's secret, and let a session be given to somebody else.
admin.site.unregister([Authenticator, UserSession])
# Providers come from the environment alone, and no token of theirs is kept.
admin.site.unregister([SocialApp, SocialToken])
# An address or an outside sign-in is a way into the account it belongs to.
admin.site.unregister([EmailAddress, SocialAccount])


class ApiKeyInline(admin.TabularInline):  # type: ignore[type-arg]  # Django itself is not generic
    model = ApiKey
    extra = 0
    can_delete = False
    show_change_link = True
    fields = readonly_fields = ("shown", "name", "scopes", "created_at", "last_used_at", "expires_at", "revoked_at")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class SessionInline(admin.TabularInline):  # type: ignore[type-arg]  # Django itself is not generic
    model = UserSession
    extra = 0
    can_delete = False
    fields = readonly_fields = ("ip", "user_agent", "created_at", "last_seen_at")
    ordering = ("-last_seen_at",)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may see the person may see these."""
        return request.user.has_perm("accounts.view_user")


@admin.register(User)
class UserAdmin(GuardedAdmin, DjangoUserAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    inlines = (ApiKeyInline, SessionInline)
    list_display = ("username", "email", "first_name", "last_name", "is_staff", "has_second_factor")
    show_full_result_count = False
    actions = ("sign_out_everywhere", "remove_second_factor")

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        factors = Authenticator.objects.filter(user=OuterRef("pk"), type=Authenticator.Type.TOTP)
        people: QuerySet[User] = super().get_queryset(request).annotate(has_factor=Exists(factors))
        return people

    @admin.display(description="Second factor", boolean=True, ordering="has_factor")
    def has_second_factor(self, user: Any) -> bool:
        return bool(user.has_factor)

    @admin.action(description="Sign out everywhere", permissions=["change"])
    def sign_out_everywhere(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """End all sessions of the selected people, and the streams open in them."""
        users = list(queryset)
        number = sessions.end_all(users)
        for user in users:
            self.log_change(request, user, "Signed out everywhere.")
        self.message_user(request, f"{number} session(s) of {len(users)} people ended.", messages.SUCCESS)

    @admin.action(description="Take away the second factor", permissions=["change"])
    def remove_second_factor(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        """For who lost theirs. They sign in with the password alone, and set up another if the rules ask for one."""
        number = 0
        for factor in Authenticator.objects.filter(user__in=list(queryset)).select_related("user"):
            told = {"request": request, "user": factor.user, "authenticator": factor}
            factor.delete()
            mfa_signals.authenticator_removed.send(Authenticator, **told)
            if factor.type != Authenticator.Type.RECOVERY_CODES:
                self.log_change(request, factor.user, "Took away the second factor.")
                number += 1
        self.message_user(request, f"{number} second factor(s) taken away.", messages.SUCCESS)

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj is not None else ()

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:
        self.checked(request, id)
        answer: HttpResponse = super().user_change_password(request, id, form_url)
        return answer

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


@admin.register(EmailAddress)
class AddressAdmin(GuardedAdmin, EmailAddressAdmin):  # type: ignore[misc]  # allauth has no types
    person_path = "user"

    @admin.action(description=EmailAddressAdmin.make_verified.short_description, permissions=["change"])
    def make_verified(self, request: HttpRequest, queryset: QuerySet[EmailAddress]) -> None:
        super().make_verified(request, queryset)


@admin.register(SocialAccount)
class OutsideAdmin(GuardedAdmin, SocialAccountAdmin):  # type: ignore[misc]  # allauth has no types
    person_path = "user"


class ScopeFilter(admin.SimpleListFilter):
    """Keys that may do this, whatever else they may."""

    title = "scope"
    parameter_name = "scope"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(scope, scope) for scope in SCOPES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
        if self.value() not in SCOPES:
            return queryset
        return queryset.filter(scopes__regex=rf"\y{self.value()}\y")


@admin.register(ApiKey)
class ApiKeyAdmin(GuardedAdmin):
    """Keys are made by their owners and by `manage.py createapikey`; here they are named, given an end, or revoked."""

    person_path = "user"
    list_display = ("shown", "name", "user", "scopes", "created_at", "last_used_at", "expires_at", "revoked_at")
    list_filter = (ScopeFilter, ("revoked_at", admin.EmptyFieldListFilter), "created_at")
    list_select_related = ("user",)
    search_fields = ("=shown", "name", "user__username")
    show_full_result_count = False
    fields = ("user", "shown", "name", "scopes", "created_at", "last_used_at", "expires_at", "revoked_at")
    readonly_fields = ("user", "shown", "scopes", "created_at", "last_used_at", "revoked_at")
    actions = ("revoke",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return not lookup.startswith("sha256") and super().lookup_allowed(lookup, value, request)  # type: ignore[arg-type]

    @admin.action(description="Revoke the selected keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        rows = list(queryset.filter(revoked_at=None))
        for key in rows:  # one by one: the audit log hears of what is saved, and of no update of many
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
            self.log_change(request, key, "Revoked.")
        number = len(rows)
        self.message_user(request, f"{number} key(s) revoked.", messages.SUCCESS)
