"""What the browser sends with a message or a title. Limits on length are the site's own, in `actions`."""

from __future__ import annotations

from django import forms

from chatsite.chat.models import TITLE_CHARS


class MessageForm(forms.Form):
    """`key` stands for one press of Send; the page gets a fresh one with every answer it is given."""

    text = forms.CharField(strip=False, required=False)
    key = forms.UUIDField(required=False)


class StartForm(MessageForm):
    """The first message of a conversation, with what holds for all of it."""

    THINKING = {"": None, "on": True, "off": False}

    model = forms.CharField(required=False, max_length=100)
    thinking = forms.ChoiceField(required=False, choices=[(name, name) for name in THINKING])
    system_prompt = forms.CharField(required=False)

    def clean_thinking(self) -> bool | None:
        return self.THINKING[self.cleaned_data["thinking"]]


class TitleForm(forms.Form):
    title = forms.CharField(required=False, max_length=TITLE_CHARS * 4)
