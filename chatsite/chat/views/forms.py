"""What the browser sends with a message, a title or settings. Limits are the site's own, in `actions` and `tuning`."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from chatsite.chat.actions.settings import Tuning
from chatsite.chat.models import TITLE_CHARS


class MessageForm(forms.Form):
    """`key` stands for one press of Send; the page gets a fresh one with every answer it is given."""

    text = forms.CharField(label=_("Message"), strip=False, required=False)
    key = forms.UUIDField(required=False)


class TuningForm(forms.Form):
    """How answers are to be written. An empty field is the model's own value; one that is not sent stays as it is."""

    THINKING = {"": None, "on": True, "off": False}

    model = forms.CharField(label=_("Model"), required=False, max_length=100)
    system_prompt = forms.CharField(label=_("Instructions"), required=False, strip=False)
    thinking = forms.ChoiceField(
        label=_("Thinking"), required=False, choices=[("", _("As the model does")), ("on", _("On")), ("off", _("Off"))]
    )
    tools = forms.ChoiceField(
        label=_("Tools"), required=False, choices=[("", _("Off")), ("on", _("On")), ("off", _("Off"))]
    )
    thinking_budget = forms.IntegerField(label=_("Longest thought"), required=False)
    temperature = forms.FloatField(label=_("Temperature"), required=False)
    top_p = forms.FloatField(label=_("Top-p"), required=False)
    max_tokens = forms.IntegerField(label=_("Longest answer"), required=False)

    def clean_thinking(self) -> bool | None:
        return self.THINKING[self.cleaned_data["thinking"]]

    def clean_tools(self) -> bool:
        return bool(self.cleaned_data["tools"] == "on")

    def tuning(self) -> Tuning:
        """What was sent, checked for its kind alone."""
        names = Tuning.__annotations__
        return {name: value for name, value in self.cleaned_data.items() if name in names and name in self.data}  # type: ignore[return-value]

    def typed(self) -> dict[str, Any]:
        """The same as text, right or wrong, to be shown again."""
        switches = {
            "thinking": self.THINKING.get(self.data.get("thinking", "")),
            "tools": self.data.get("tools") == "on",
        }
        return {name: self.data.get(name, "") for name in Tuning.__annotations__} | switches


class StartForm(MessageForm, TuningForm):
    """The first message of a conversation, with what holds for all of it."""


class TitleForm(forms.Form):
    title = forms.CharField(required=False, max_length=TITLE_CHARS * 4)
