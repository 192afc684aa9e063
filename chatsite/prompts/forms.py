"""What is typed to keep a prompt, and into the blanks of one."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import User
from chatsite.prompts.blanks import Blank
from chatsite.prompts.models import PromptTemplate


class PromptForm(forms.ModelForm):  # type: ignore[type-arg]  # Django itself is not generic
    class Meta:
        model = PromptTemplate
        fields = ("name", "title", "text", "is_shared")
        labels = {"name": _("Name, as in /name"), "title": _("What it is for"), "text": _("Prompt")}
        help_texts = {
            "text": _("{{word}} is asked for before it is used; {{word|example}} suggests a value."),
            "is_shared": "",
        }
        widgets = {"text": forms.Textarea(attrs={"rows": 8})}

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if user.is_staff:
            self.fields["is_shared"].label = _("Share it with everybody")
        else:
            del self.fields["is_shared"]


class BlanksForm(forms.Form):
    """One line for each blank; what stays empty takes the default."""

    def __init__(self, blanks: list[Blank], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for blank in blanks:
            self.fields[blank.name] = forms.CharField(
                label=blank.name.replace("_", " "),
                required=False,
                strip=False,
                initial=blank.default,
                widget=forms.Textarea(attrs={"rows": 1}),
            )
