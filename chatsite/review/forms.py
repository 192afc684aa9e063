"""What reviewers type: whom they look for, why they open a conversation, and what they made of a report."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import forms
from django.db.models import Q, QuerySet

from chatsite.chat.models import TITLE_CHARS, Conversation, Feedback
from chatsite.review.actions import Policy
from chatsite.review.models import NOTE_CHARS, REASON_CHARS


class SearchForm(forms.Form):
    """One owner (name or e-mail address, whole), one conversation id, or those whose owners gave an opinion; a title
    narrows an owner's list down.

    Titles alone are not searched: that would tell which words anybody's conversations are about, without a record.
    Where only what was reported may be read, neither titles nor opinions are asked about at all.
    """

    OPINIONS = (("", "All"), ("any", "With feedback"), ("bad", "With bad feedback"), ("good", "With good feedback"))

    owner = forms.CharField(label="User name, e-mail address or conversation id", max_length=254, required=False)
    title = forms.CharField(label="Words of the title", max_length=TITLE_CHARS, required=False)
    feedback = forms.ChoiceField(label="Opinions of answers", choices=OPINIONS, required=False)

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if policy is not Policy.REASON:
            del self.fields["title"], self.fields["feedback"]

    def clean(self) -> dict[str, Any]:
        typed = super().clean() or {}
        if not typed.get("owner") and (typed.get("title") or not typed.get("feedback")):
            without = "; only those with feedback are listed without" if "feedback" in self.fields else ""
            self.add_error("owner", f"Say whose conversations, or which{without}.")
        return typed

    def conversations(self, among: QuerySet[Conversation]) -> QuerySet[Conversation]:
        """Those asked for, of `among`."""
        found = self._of_owner(among)
        match self.cleaned_data.get("feedback"):
            case "any":
                found = found.filter(messages__feedback__isnull=False)
            case "bad":
                found = found.filter(messages__feedback__rating=Feedback.Rating.BAD)
            case "good":
                found = found.filter(messages__feedback__rating=Feedback.Rating.GOOD)
        return Conversation.objects.filter(pk__in=found.values("pk"))

    def _of_owner(self, among: QuerySet[Conversation]) -> QuerySet[Conversation]:
        wanted = self.cleaned_data["owner"]
        if not wanted:
            return among
        try:
            found = among.filter(pk=UUID(wanted))
        except ValueError:
            found = among.filter(Q(owner__username__iexact=wanted) | Q(owner__email__iexact=wanted))
        if title := self.cleaned_data.get("title"):
            found = found.filter(title__icontains=title)
        return found


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label="Why do you open it?",
        max_length=REASON_CHARS,
        widget=forms.Textarea(attrs={"rows": 3, "autofocus": True}),
        help_text="The owner sees your name, the time and this reason.",
    )


class OutcomeForm(forms.Form):
    note = forms.CharField(
        label="Note for the owner",
        max_length=NOTE_CHARS,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="The owner sees it under the answer, with your name. It may stay empty.",
    )
