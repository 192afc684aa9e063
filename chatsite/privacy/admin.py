"""Accounts deleted in Django's admin, one or many, go the same way as those that their owners delete.

The form for people is that of `accounts`; this app is above it, so it is registered again here, with that one change.
"""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest

from chatsite.accounts.admin import UserAdmin
from chatsite.accounts.models import User
from chatsite.privacy import erasure

admin.site.unregister(User)


@admin.register(User)
class ErasingUserAdmin(UserAdmin):
    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """As it was, but whoever may not go stands among what forbids it, in a sentence."""
        names, counts, missing, forbidding = super().get_deleted_objects(objs, request)
        return names, counts, missing, [*forbidding, *_refusals(list(objs))]

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        _erase(obj, request)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        for user in sorted(queryset, key=lambda user: user.pk == request.user.pk):  # who asks goes last, if at all
            _erase(user, request)


def _refusals(users: list[User]) -> list[str]:
    """Also of several who together are all the superusers that there are."""
    found = [str(why) for user in users if (why := erasure.refusal(user))]
    leaving = [user for user in users if user.is_superuser and user.is_active]
    others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk__in=[user.pk for user in users])
    if leaving and not found and not others.exists():
        found = ["These are all the administrators of this site who can sign in. One of them must stay."]
    return found


def _erase(user: User, request: HttpRequest) -> None:
    try:
        erasure.erase(user, cast(User, request.user))
    except erasure.ErasureRefused as refusal:  # it came meanwhile: the page would not have offered it
        raise PermissionDenied(str(refusal)) from refusal
    if user.pk == request.user.pk:
        request.session.flush()  # it ended with the account, and must not be saved once more
