"""Pages of the admin that keep to the rule of `rights`: a row of somebody whom one may not change is there to look at.

Its page says why it cannot be changed, a list's action leaves it out and says so, and a request that goes around both
is refused and told to `rights.change_refused`. A base class for whatever belongs to a person.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from typing import Any, ClassVar, NoReturn

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse

from chatsite.accounts import rights
from chatsite.accounts.models import User

WHY = "nobody changes whoever holds rights that they lack"
WHY_SUPERUSER = "only a superuser changes one"
NAMES_SHOWN = 20


class GuardedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    person_path: ClassVar[str] = ""  # from a row to whose it is, as a lookup has it; empty: the row is the person

    # -- the rule, of this model's rows

    def beyond(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows that whoever asks may not change."""
        wanted = {f"{self.person_path or 'pk'}__in": rights.beyond(request.user)}
        rows: QuerySet[Any] = self.model._base_manager.filter(**wanted)
        return rows

    def person_of(self, row: Any) -> User | None:
        person: User | None = attrgetter(self.person_path.replace("__", "."))(row) if self.person_path else row
        return person

    def is_beyond(self, request: HttpRequest, row: Model | None) -> bool:
        return row is not None and self.beyond(request).filter(pk=row.pk).exists()

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and not self.is_beyond(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and not self.is_beyond(request, obj)

    # -- one row

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        row = self.checked(request, object_id)
        if row is not None and super().has_change_permission(request, row):
            self.message_user(request, f"This cannot be changed here: {self._why(row)}.", messages.WARNING)
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except rights.ChangeRefused as refusal:
            _tell(refusal)  # only now: what was written before it is taken back
            raise

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        self.checked(request, object_id)
        return super().delete_view(request, object_id, extra_context)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Nor does a row come to somebody who must not be changed."""
        person = self.person_of(obj) if self.person_path else None
        if person is not None and not rights.may_change(request.user, person):
            raise rights.ChangeRefused(obj, person)
        super().save_model(request, obj, form, change)

    def checked(self, request: HttpRequest, object_id: str | None) -> Any:
        """The row, if it is one that whoever asks may not change.

        Raises:
            ChangeRefused: and this is a form that was sent.
        """
        row = self.get_object(request, unquote(object_id)) if object_id else None
        if not self.is_beyond(request, row):
            return None
        if request.method == "POST":
            self.refuse(row)
        return row

    def refuse(self, row: Any) -> NoReturn:
        refusal = rights.ChangeRefused(row, self.person_of(row))
        _tell(refusal)
        raise refusal

    # -- several rows

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *where: Any) -> HttpResponse | None:
        """Whatever the action is, it is done to the others alone."""
        kept = queryset.filter(pk__in=self.beyond(request))
        if "select_across" not in request.POST or request.POST["select_across"] == "0":
            kept = kept.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
        reasons: dict[str, list[Any]] = {}
        for row in kept:
            reasons.setdefault(self._why(row), []).append(row)
        for why, rows in reasons.items():
            self.spare(request, rows, why)
        queryset = queryset.exclude(pk__in=self.beyond(request))  # of all, however many were said to be marked
        answer: HttpResponse | None = super().response_action(request, queryset, *where)
        return answer

    def spare(self, request: HttpRequest, rows: Collection[Any], why: str) -> None:
        """Say which rows an action leaves alone, and why."""
        if rows:
            names = ", ".join(str(row) for row in list(rows)[:NAMES_SHOWN])
            others = f" and {len(rows) - NAMES_SHOWN} more" if len(rows) > NAMES_SHOWN else ""
            self.message_user(request, f"Left as it was: {names}{others}; {why}.", messages.WARNING)

    def _why(self, row: Any) -> str:
        person = self.person_of(row)
        return WHY_SUPERUSER if person is not None and person.is_superuser else WHY


def _tell(refusal: rights.ChangeRefused) -> None:
    rights.change_refused.send(type(refusal.row), row=refusal.row, person=refusal.person)
