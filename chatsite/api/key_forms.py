"""What is typed to make an API key, and to name one."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import SCOPES
from chatsite.api.keys import MAX_NAME_CHARS, NO_SCOPE

LIFETIMES = (7, 30, 90, 365)  # days
USUAL_DAYS = 90
NEVER = "never"
SCOPE_WORDS = {"chat": _("Chat: POST /v1/chat/completions"), "models": _("See the models: GET /v1/models")}


class NameForm(forms.Form):
    name = forms.CharField(
        label=_("Name"), max_length=MAX_NAME_CHARS, widget=forms.TextInput(attrs={"autocomplete": "off"})
    )


class KeyForm(NameForm):
    """Offers no lifetime that is longer than `longest` days; None: any, and for ever. One that is sent all the same is
    refused by `keys.create`, which knows why."""

    scopes = forms.MultipleChoiceField(
        label=_("What it may do"),
        choices=[(scope, SCOPE_WORDS[scope]) for scope in SCOPES],
        initial=list(SCOPES),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": NO_SCOPE},
    )
    days = forms.CharField(label=_("Expires"), widget=forms.Select)
    token = forms.UUIDField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, longest: int | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offered = [days for days in LIFETIMES if longest is None or days <= longest]
        if longest is not None and longest not in offered and longest < LIFETIMES[-1]:
            offered.append(longest)
        choices = [
            (str(each), ngettext("after %(days)d day", "after %(days)d days", each) % {"days": each})
            for each in offered
        ]
        if longest is None:
            choices.append((NEVER, gettext("never")))
        self.fields["days"].widget = forms.Select(choices=choices)
        self.fields["days"].initial = str(max(each for each in offered if each <= USUAL_DAYS or each == offered[0]))
        # A fresh one for each form that is shown: the same form sent twice makes one key.
        self.initial.setdefault("token", uuid.uuid4())

    def clean_days(self) -> int | None:
        """Days; None for ever."""
        days = self.cleaned_data["days"]
        if days == NEVER:
            return None
        if not (days.isascii() and days.isdigit() and len(days) <= 5):
            raise forms.ValidationError(gettext("Choose when the key expires."))
        return int(days)
