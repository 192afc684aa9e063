"""What an auditor asks for: whose entries, of which kind, from when to when."""

from __future__ import annotations

import datetime
from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.audit.models import NAME_CHARS, Action, AuditEntry


class FilterForm(forms.Form):
    """Every field may stay empty. A name is given whole; accounts that are gone are found by what stands for them."""

    person = forms.CharField(label="Person, by the whole user name", max_length=NAME_CHARS, required=False)
    action = forms.ChoiceField(label="What was done", choices=[("", "Everything"), *Action.choices], required=False)
    since = forms.DateField(label="From", required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(label="To", required=False, widget=forms.DateInput(attrs={"type": "date"}))

    def clean(self) -> dict[str, Any]:
        typed = super().clean() or {}
        since, until = typed.get("since"), typed.get("until")
        if since and until and until < since:
            self.add_error("until", f"The last day, {until}, is before the first, {since}.")
        return typed

    def entries(self) -> QuerySet[AuditEntry]:
        """Of a valid form, newest first."""
        asked = self.cleaned_data
        found = AuditEntry.objects.order_by("-id")
        if name := asked["person"]:
            found = found.filter(_of(name))
        if asked["action"]:
            found = found.filter(action=asked["action"])
        if asked["since"]:
            found = found.filter(at__gte=_aware(asked["since"], datetime.time.min))
        if asked["until"]:
            found = found.filter(at__lte=_aware(asked["until"], datetime.time.max))
        return found

    def asked(self) -> dict[str, str]:
        """Of a valid form: what was filled in, as an address or an entry has it."""
        return {name: str(value) for name, value in self.cleaned_data.items() if value}


def _of(name: str) -> Q:
    """Entries that have the name, and those of the account that has it now, whatever it was called then."""
    accounts = User.objects.filter(username__iexact=name).values("pk")
    by_name = Q(actor_name__iexact=name) | Q(subject_name__iexact=name)
    return by_name | Q(actor__in=accounts) | Q(subject__in=accounts)


def _aware(day: datetime.date, time: datetime.time) -> datetime.datetime:
    return timezone.make_aware(datetime.datetime.combine(day, time))
