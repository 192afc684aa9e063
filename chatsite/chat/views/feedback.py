"""The thumbs under an answer. With htmx the two buttons are drawn anew, without a script the page is loaded again."""

from __future__ import annotations

import uuid

from django import forms
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from chatsite.chat.actions import feedback
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import REASON_CHARS, Feedback, Message
from chatsite.chat.queries import access
from chatsite.chat.rendering import message
from chatsite.chat.views import responses


class FeedbackForm(forms.Form):
    """`rating` empty takes the opinion back."""

    rating = forms.TypedChoiceField(
        choices=[("", ""), *((str(value), value) for value in Feedback.Rating.values)],
        coerce=int,
        required=False,
        empty_value=None,
    )
    reason = forms.ChoiceField(choices=[("", ""), *Feedback.Reason.choices], required=False)
    comment = forms.CharField(required=False, max_length=REASON_CHARS, strip=True)
    is_reported = forms.BooleanField(required=False)


@require_POST
@responses.signed_in
def give(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    answer = access.message_of(request.user, message_id)
    form = FeedbackForm(request.POST)
    try:
        if not form.is_valid():
            raise responses.refusal_of(form)
        if form.cleaned_data["rating"] is None:
            feedback.withdraw(request.user, answer)
        else:
            feedback.give(request.user, answer, **form.cleaned_data)
    except SendRefused as refusal:
        return responses.refused(request, answer.conversation, refusal)
    if not request.htmx:
        return redirect(reverse("chat:conversation", args=(answer.conversation_id,)) + f"#m-{answer.pk}")
    fresh = Message.objects.select_related("generation", "feedback").get(pk=answer.pk)
    return render(request, "chat/_feedback.html", {"shown": message.shown(fresh)})
