"""What reviewers type: whom they look for, why they open a conversation, and what they made of a report."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

from django import forms
from django.db.models import Q, QuerySet
from django.utils import timezone

from chatsite.chat.models import Conversation, Feedback
from chatsite.review.actions import Policy
from chatsite.review.models import NOTE_CHARS, REASON_CHARS


def _date() -> forms.DateInput:
    return forms.DateInput(attrs={"type": "date"})


class SearchForm(forms.Form):
    """One owner (name or e-mail address, whole), one conversation id, or those with an opinion or a report; narrowed
    down by dates and by the model.

    Nothing here asks about what somebody wrote, the title included: whether a row is found would tell it letter by
    letter, and no record be made. Where only what was reported may be read, opinions and models are not asked about.
    """

    OPINIONS = (
        ("", "All"),
        ("reported", "With a report"),
        ("any", "With feedback"),
        ("bad", "With bad feedback"),
        ("good", "With good feedback"),
    )
    OF_ALL = ("model", "feedback")  # asked about only where any conversation may be read

    owner = forms.CharField(label="User name, e-mail address or conversation id", max_length=254, required=False)
    since = forms.DateField(label="Last message from", required=False, widget=_date())
    until = forms.DateField(label="to", required=False, widget=_date())
    model = forms.CharField(label="Model, by its whole name", max_length=100, required=False)
    feedback = forms.ChoiceField(label="Opinions of answers", choices=OPINIONS, required=False)

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if policy is not Policy.REASON:
            for name in self.OF_ALL:
                del self.fields[name]

    def clean(self) -> dict[str, Any]:
        typed = super().clean() or {}
        if not typed.get("owner") and not typed.get("feedback"):
            without = "; only those with feedback are listed without" if "feedback" in self.fields else ""
            self.add_error("owner", f"Say whose conversations, or which{without}.")
        since, until = typed.get("since"), typed.get("until")
        if since and until and until < since:
            self.add_error("until", f"The last day, {until}, is before the first, {since}.")
        return typed

    def conversations(self, among: QuerySet[Conversation]) -> QuerySet[Conversation]:
        """Those asked for, of `among`."""
        found = self._of_owner(among)
        asked = self.cleaned_data
        if asked["since"]:
            found = found.filter(updated_at__gte=_aware(asked["since"], datetime.time.min))
        if asked["until"]:
            found = found.filter(updated_at__lte=_aware(asked["until"], datetime.time.max))
        if model := asked.get("model"):
            found = found.filter(model=model)
        match asked.get("feedback"):
            case "reported":
                found = found.filter(messages__feedback__is_reported=True)
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
            return among.filter(pk=UUID(wanted))
        except ValueError:
            return among.filter(Q(owner__username__iexact=wanted) | Q(owner__email__iexact=wanted))


def _aware(day: datetime.date, time: datetime.time) -> datetime.datetime:
    return timezone.make_aware(datetime.datetime.combine(day, time))


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
