"""What reviewers type: whom they look for, and why they open a conversation."""

from __future__ import annotations

from uuid import UUID

from django import forms
from django.db.models import Q, QuerySet

from chatsite.chat.models import TITLE_CHARS, Conversation
from chatsite.review.models import REASON_CHARS


class SearchForm(forms.Form):
    """One owner (name or e-mail address, whole) or one conversation id; a title narrows an owner's list down.

    Titles alone are not searched: that would tell which words anybody's conversations are about, without a record.
    """

    owner = forms.CharField(label="User name, e-mail address or conversation id", max_length=254)
    title = forms.CharField(label="Words of the title", max_length=TITLE_CHARS, required=False)

    def conversations(self) -> QuerySet[Conversation]:
        wanted = self.cleaned_data["owner"]
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
