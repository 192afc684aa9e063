"""People in Django's admin as operators need them: who is there, what they use, and what is done with several at once.

This app sees usage and answers, which the form of `accounts` does not know; so it refines what apps below and beside
it have registered, and comes after them in INSTALLED_APPS. Whom one may change is decided by `accounts.rights`; rights
and groups are given by superusers alone.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Group
from django.db.models import OuterRef, QuerySet, Subquery, Sum
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import pluralize
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.text import capfirst

from chatsite.accounts.models import User
from chatsite.ops import people
from chatsite.usage.calendar import Scope, window
from chatsite.usage.models import UsageDay

RIGHTS = ("is_staff", "is_superuser", "groups", "user_permissions")
GROUP_ACTIONS = ("add_to_group", "remove_from_group")


class GroupField(forms.ModelChoiceField):  # type: ignore[type-arg]  # Django itself is not generic
    """Says of a group what would delete something."""

    def label_from_instance(self, group: Any) -> str:
        days = getattr(getattr(group, "rules", None), "retention_days", None)
        return f"{group} (conversations stay {days} day{pluralize(days)})" if days else str(group)


class GroupForm(forms.Form):
    group = GroupField(Group.objects.select_related("rules").order_by("name"))


Registered: Any = type(admin.site.get_model_admin(User))
admin.site.unregister(User)


@admin.register(User)
class PeopleAdmin(Registered):  # type: ignore[misc]  # known only when all apps below have registered theirs
    list_display = (
        *("username", "is_active", "last_login", "tokens_this_month", "group_names"),
        *("has_second_factor", "is_staff", "email"),
    )
    list_filter = ("is_active", "is_staff", "is_superuser", "groups")
    list_per_page = 50
    actions = (*Registered.actions, "activate", "deactivate", *GROUP_ACTIONS)

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        """The sums are asked for in the list's one query, and only of those on the page that is shown."""
        month = window(Scope.MONTH, timezone.now()).first_day
        used = UsageDay.objects.filter(user=OuterRef("pk"), day__gte=month).order_by().values("user")
        tokens = Subquery(used.annotate(tokens=Sum("charged_tokens")).values("tokens"))
        users: QuerySet[User] = super().get_queryset(request)
        return users.annotate(month_tokens=tokens).prefetch_related("groups")

    @admin.display(description="Groups")
    def group_names(self, user: User) -> str:
        return ", ".join(sorted(group.name for group in user.groups.all()))

    @admin.display(description="Tokens this month")
    def tokens_this_month(self, user: Any) -> str:
        return f"{user.month_tokens or 0:,}"

    # -- who may do what

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = super().get_readonly_fields(request, obj)
        return fields if request.user.is_superuser else (*fields, *RIGHTS)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        found = super().get_actions(request)
        return {name: action for name, action in found.items() if name not in GROUP_ACTIONS or _is_root(request)}

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and "is_active" in form.changed_data and not obj.is_active:
            people.end_activity(obj)

    # -- actions

    @admin.action(description="Deactivate: sign out, stop their answers, let in no more", permissions=["change"])
    def deactivate(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        changed = list(queryset.filter(is_active=True))
        self.spare(request, [user for user in changed if user == request.user], "nobody deactivates themselves")
        changed = [user for user in changed if user != request.user]
        for user in changed:
            people.deactivate(user)
            self.log_change(request, user, "Deactivated.")
        self._say(request, len(changed), "deactivated")

    @admin.action(description="Activate again", permissions=["change"])
    def activate(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        changed = list(queryset.filter(is_active=False))
        for user in changed:
            people.activate(user)
            self.log_change(request, user, "Activated.")
        self._say(request, len(changed), "activated")

    @admin.action(description="Add to a group…", permissions=["change"])
    def add_to_group(self, request: HttpRequest, queryset: QuerySet[User]) -> HttpResponse | None:
        return self._with_group(request, queryset, "add_to_group", "Add to a group", is_added=True)

    @admin.action(description="Remove from a group…", permissions=["change"])
    def remove_from_group(self, request: HttpRequest, queryset: QuerySet[User]) -> HttpResponse | None:
        return self._with_group(request, queryset, "remove_from_group", "Remove from a group", is_added=False)

    def _with_group(
        self, request: HttpRequest, queryset: QuerySet[User], action: str, title: str, *, is_added: bool
    ) -> HttpResponse | None:
        """A page that asks which one; the second time, with the answer, it is done."""
        form = GroupForm(request.POST if "chosen" in request.POST else None)
        if not form.is_valid():
            context = {
                **self.admin_site.each_context(request),
                **{"title": title, "opts": self.opts, "form": form, "people": queryset, "action": action},
                "checkbox_name": ACTION_CHECKBOX_NAME,
            }
            return TemplateResponse(request, "ops/admin_group.html", context, status=400 if form.is_bound else 200)
        group: Group = form.cleaned_data["group"]
        changed = list(queryset.exclude(groups=group) if is_added else queryset.filter(groups=group))
        done = f"added to {group}" if is_added else f"removed from {group}"
        for user in changed:
            (user.groups.add if is_added else user.groups.remove)(group)
            self.log_change(request, user, f"{capfirst(done)}.")
        self._say(request, len(changed), done)
        return None

    def _say(self, request: HttpRequest, number: int, done: str) -> None:
        told = f"{number} {pluralize(number, 'person,people')} {done}."
        self.message_user(request, told, messages.SUCCESS if number else messages.WARNING)


def _is_root(request: HttpRequest) -> bool:
    return bool(request.user.is_superuser)
