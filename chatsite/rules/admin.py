"""Rules in Django's admin: the site's on one page, a group's and a person's at the foot of theirs.

A retention that deletes more than the one before says how much, and is only taken when that is confirmed.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import pluralize

from chatsite.accounts import rights
from chatsite.accounts.admin import UserAdmin
from chatsite.accounts.guarding import GuardedAdmin
from chatsite.rules import effective, foresight
from chatsite.rules.models import GroupRules, SiteRules, UserRules

PAGE = "1"  # the id of the one row, whether it has been saved yet or not


class RetentionForm(forms.ModelForm):  # type: ignore[type-arg]  # Django itself is not generic
    """Takes a retention that deletes something only with the box ticked."""

    deletes = forms.BooleanField(
        label="Delete what is older",
        required=False,
        help_text="Only needed when conversations are old enough to go at once: you are told how many first.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "retention_days" in cleaned and not cleaned.get("deletes"):
            before, days, group = self._lives(cleaned["retention_days"])
            if days is not None and foresight.is_sooner(days, before) and (number := foresight.num_due(days, group)):
                whose = f" of members of {group}" if group else ""
                self.add_error(
                    "deletes",
                    f"{number:,} conversation{pluralize(number)}{whose} {pluralize(number, 'was,were')}"
                    f" last written in more than {days:,} day{pluralize(days)} ago. This rule deletes"
                    f" {pluralize(number, 'it,them')} for good, at the next round of deletions. Tick the box to confirm"
                    " that, or choose a longer time.",
                )
        return cleaned

    def _lives(self, wanted: int | None) -> tuple[int | None, int | None, Group | None]:
        """Days before this change, days after it, and of which group."""
        raise NotImplementedError


class SiteRulesForm(RetentionForm):
    def _lives(self, wanted: int | None) -> tuple[int | None, int | None, Group | None]:
        return effective.site_rules().retention_days, wanted, None


class GroupRulesForm(RetentionForm):
    def _lives(self, wanted: int | None) -> tuple[int | None, int | None, Group | None]:
        """Empty: as the site says, which may be sooner."""
        site = effective.site_rules().retention_days
        group = Group.objects.filter(pk=self.instance.group_id).first()
        if group is None:  # it is being made and has no member yet
            return None, None, None
        before = GroupRules.objects.filter(group=group).values_list("retention_days", flat=True).first()
        return site if before is None else before, site if wanted is None else wanted, group


@admin.register(SiteRules)
class SiteRulesAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    form = SiteRulesForm
    radio_fields = {"review_policy": admin.VERTICAL, "two_factor": admin.VERTICAL}
    fieldsets = (
        (
            "Tokens of one person",
            {
                "description": "What one person may use, in the chat and through the API together. A group may give"
                " its members more or less, and a person's own rules go before both. Tokens that a worker already"
                " knew from the turn before count nothing.",
                "fields": ("tokens_per_day", "tokens_per_month"),
            },
        ),
        (
            "How long conversations stay",
            {
                "description": "Counted from the last message; then a conversation goes for good, with its files and"
                " shared links. The shortest time of a person's groups goes before the site's. What was used stays in"
                " the sums of usage, without a text.",
                "fields": ("retention_days", "deletes"),
            },
        ),
        (
            "Second factor",
            {
                "description": "Whoever must have one and has none sees nothing but the pages that set it up, from"
                " the next page on. Staff is whoever may open this admin or holds a role, as members of Operators,"
                " Reviewers and Auditors do. A group may ask it of its members.",
                "fields": ("two_factor",),
            },
        ),
        (
            "Reading conversations of others",
            {
                "description": "Only for people with the permission to open conversations of others, as the group"
                " Reviewers has it. Each opening is recorded before anything is shown, and the owner sees who, when"
                " and why.",
                "fields": ("review_policy",),
            },
        ),
        ("Keys and records", {"fields": ("key_days", "audit_days")}),
    )

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> SiteRules | None:
        return effective.site_rules() if object_id == PAGE else None

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """There is only one, so the list is its form."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        return redirect("admin:rules_siterules_change", PAGE)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class GroupRulesInline(admin.StackedInline):  # type: ignore[type-arg]  # Django itself is not generic
    model = GroupRules
    form = GroupRulesForm
    can_delete = False
    fields = (
        ("tokens_per_day", "tokens_per_month"),
        ("pool_per_day", "pool_per_month"),
        "retention_days",
        "deletes",
        "requires_two_factor",
    )


class UserRulesInline(admin.StackedInline):  # type: ignore[type-arg]  # Django itself is not generic
    model = UserRules
    can_delete = False
    fields = (("tokens_per_day", "tokens_per_month"),)


admin.site.unregister(Group)


@admin.register(Group)
class GroupAdmin(GuardedAdmin, DjangoGroupAdmin):
    """A group is changed by who holds whatever it gives, and may change all its members; see `accounts.rights`."""

    inlines = (GroupRulesInline,)
    list_display = ("name", "num_people", "tokens_per_day", "tokens_per_month", "retention_days", "two_factor")
    list_select_related = ("rules",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        groups: QuerySet[Group] = super().get_queryset(request).annotate(num_people=Count("user"))
        return groups

    def beyond(self, request: HttpRequest) -> QuerySet[Group]:
        return rights.groups_beyond(request.user)

    def person_of(self, row: Any) -> None:
        return None

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest | None = None, **kwargs: Any) -> Any:
        field = super().formfield_for_manytomany(db_field, request, **kwargs)
        if db_field.name == "permissions" and field and field.queryset is not None and not _is_superuser(request):
            field.queryset = field.queryset.filter(pk__in=rights.held(getattr(request, "user", None)))
            field.help_text = f"{field.help_text} You can give those that you hold yourself.".strip()
        return field

    def checked(self, request: HttpRequest, object_id: str | None) -> Any:
        """Nor is a permission given that whoever asks does not hold, to this group or a new one."""
        row = super().checked(request, object_id)
        if request.method == "POST" and not _is_superuser(request):
            wanted = {int(pk) for pk in request.POST.getlist("permissions") if pk.isdecimal()}
            if not wanted <= set(rights.held(request.user).values_list("pk", flat=True)):
                group = self.get_object(request, unquote(object_id)) if object_id else None
                self.refuse(group or Group(name=request.POST.get("name", "")))
        return row

    @admin.display(description="People", ordering="num_people")
    def num_people(self, group: Any) -> int:
        return int(group.num_people)

    @admin.display(description="Tokens a day, each")
    def tokens_per_day(self, group: Group) -> object:
        return _said(group, "tokens_per_day")

    @admin.display(description="Tokens a month, each")
    def tokens_per_month(self, group: Group) -> object:
        return _said(group, "tokens_per_month")

    @admin.display(description="Conversations stay, days")
    def retention_days(self, group: Group) -> object:
        return _said(group, "retention_days")

    @admin.display(description="Second factor", boolean=True)
    def two_factor(self, group: Group) -> bool:
        return bool(_said(group, "requires_two_factor"))


def _is_superuser(request: HttpRequest | None) -> bool:
    return bool(getattr(getattr(request, "user", None), "is_superuser", False))


def _said(group: Group, name: str) -> object:
    """The rule of that name; None where the group has no rules."""
    return getattr(getattr(group, "rules", None), name, None)


UserAdmin.inlines = (*UserAdmin.inlines, UserRulesInline)  # type: ignore[assignment]  # one more than they were
