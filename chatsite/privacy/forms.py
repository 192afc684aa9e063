"""What is typed to delete an account: its name, so that nobody does it by a slip."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from chatsite.accounts.models import User


class DeletionForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("User name"),
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none", "spellcheck": "false"}),
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._user = user

    def clean_name(self) -> str:
        typed: str = self.cleaned_data["name"]
        if typed != self._user.get_username():
            raise forms.ValidationError(
                _("“%(typed)s” is not the name of this account, which is “%(name)s”.")
                % {"typed": typed, "name": self._user.get_username()}
            )
        return typed
