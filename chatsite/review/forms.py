"""What reviewers type: whom they look for, and why they open a conversation."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.db.models import Q, QuerySet

from chatsite.chat.models import TITLE_CHARS, Conversation, Feedback
from chatsite.review.models import REASON_CHARS


class SearchForm(forms.Form):
    """One owner (name or e-mail address, whole), one conversation id, or those whose owners gave an opinion; a title
    narrows an owner's list down.

    Titles alone are not searched: that would tell which words anybody's conversations are about, without a record.
    """

    OPINIONS = (("", "All"), ("any", "With feedback"), ("bad", "With bad feedback"), ("good", "With good feedback"))

    owner = forms.CharField(label="User name, e-mail address or conversation id", max_length=254, required=False)
    title = forms.CharField(label="Words of the title", max_length=TITLE_CHARS, required=False)
    feedback = forms.ChoiceField(label="Opinions of answers", choices=OPINIONS, required=False)

    def clean(self) -> dict[str, Any]:
        typed = super().clean() or {}
        if not typed.get("owner") and (typed.get("title") or not typed.get("feedback")):
            self.add_error("owner", "Say whose conversations, or which; only those with feedback are listed without.")
        return typed

    def conversations(self) -> QuerySet[Conversation]:
        found = self._of_owner()
        match self.cleaned_data["feedback"]:
            case "any":
                found = found.filter(messages__feedback__isnull=False)
            case "bad":
                found = found.filter(messages__feedback__rating=Feedback.Rating.BAD)
            case "good":
                found = found.filter(messages__feedback__rating=Feedback.Rating.GOOD)
        return Conversation.objects.filter(pk__in=found.values("pk"))

    def _of_owner(self) -> QuerySet[Conversation]:
        wanted = self.cleaned_data["owner"]
        if not wanted:
            return Conversation.objects.all()
        try:
            found = Conversation.objects.filter(pk=UUID(wanted))
        except ValueError:
            found = Conversation.objects.filter(Q(owner__username__iexact=wanted) | Q(owner__email__iexact=wanted))
        if title := self.cleaned_data["title"]:
            found = found.filter(title__icontains=title)
        return found


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label="Why do you open it?",
        max_length=REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 3, "autofocus": True}),
        help_text="The owner sees your name, the time and this reason.",
    )
