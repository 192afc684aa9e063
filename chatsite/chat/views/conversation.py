"""The chat's page and its composer: open, begin, send, and older messages."""

from __future__ import annotations

import uuid

from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from chatsite.chat.actions import queue as actions_queue
from chatsite.chat.actions import quote as actions_quote
from chatsite.chat.actions import send as actions_send
from chatsite.chat.actions import settings
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import QueuedMessage
from chatsite.chat.queries import access
from chatsite.chat.rendering import message
from chatsite.chat.views import queue as views_queue
from chatsite.chat.views import responses
from chatsite.chat.views.forms import MessageForm, StartForm, TuningForm


@require_GET
@responses.signed_in
def home(request: responses.ChatRequest) -> HttpResponse:
    """A conversation that has not begun."""
    return responses.page(request, None)


@require_GET
@responses.signed_in
def conversation(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    return responses.page(request, access.conversation_of(request.user, conversation_id))


@require_POST
@responses.signed_in
def start(request: responses.ChatRequest) -> HttpResponse:
    """The first message of a new conversation. The same press of Send twice begins one."""
    form = StartForm(request.POST)
    if not form.is_valid():
        return responses.invalid(request, None, form)
    typed = form.cleaned_data
    try:
        begun = actions_send.begin(
            request.user,
            typed["text"],
            idempotency_key=typed["key"],
            attachments=request.POST.getlist("files"),
            **form.tuning(),
        )
    except SendRefused as refusal:
        return responses.refused(request, None, refusal)
    if not request.htmx:
        return redirect("chat:conversation", begun.pk)
    response = responses.page(request, access.conversation_of(request.user, begun.pk), with_sidebar=True)
    response["HX-Push-Url"] = reverse("chat:conversation", args=(begun.pk,))
    response["HX-Retarget"] = "#chat"
    response["HX-Reswap"] = "outerHTML"
    return response


@require_POST
@responses.signed_in
def send(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    target = access.conversation_of(request.user, conversation_id)
    form = MessageForm(request.POST)
    if not form.is_valid():
        return responses.invalid(request, target, form)
    typed = form.cleaned_data
    try:
        sent = actions_queue.say(
            request.user,
            target,
            typed["text"],
            idempotency_key=typed["key"],
            files=request.POST.getlist("files"),
        )
    except SendRefused as refusal:
        return responses.refused(request, target, refusal)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    target.refresh_from_db()
    if isinstance(sent, QueuedMessage):
        return views_queue.drawn(request, target, "chat/_queued.html")
    context = {
        **responses.queue_context(target),
        "turns": [message.shown(sent.message), message.shown(sent.answer)],
        "new_key": uuid.uuid4(),
        "choice": responses.choice_of(target),
    }
    if sent.is_repeat:  # the page may or may not show it already: draw the whole list anew
        return responses.log(request, target)
    return render(request, "chat/_sent.html", context)


@require_POST
@responses.signed_in
def quote(request: responses.ChatRequest) -> HttpResponse:
    """Have the fixed document recited, in the conversation named or in a new one."""
    name = request.POST.get("conversation", "")
    target = access.conversation_of(request.user, name) if name else None
    try:
        with transaction.atomic():
            target = target or actions_send.start_conversation(request.user)
            actions_quote.quote(request.user, target)
    except SendRefused as refusal:
        return responses.refused(request, target, refusal)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    if name:
        return responses.branch(request, target)
    return HttpResponse(headers={"HX-Redirect": reverse("chat:conversation", args=(target.pk,))})


@require_GET
@responses.signed_in
def earlier(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """The messages before one of them, for the upper end of a long conversation."""
    target = access.conversation_of(request.user, conversation_id)
    path = access.path_ids_of(target)
    before = request.GET.get("before", "")
    end = next((index for index, found in enumerate(path) if str(found) == before), 0)
    if not request.htmx:
        return redirect(reverse("chat:conversation", args=(target.pk,)) + "?all=1")
    begin = max(0, end - message.SHOWN_MESSAGES)
    turns = message.shown_path(target, access.messages_of(path[begin:end]))
    return render(request, "chat/_turns.html", {"turns": turns, "conversation": target, "has_earlier": begin > 0})


@require_POST
@responses.signed_in
def tune(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """Settings of a conversation; those that are not sent stay."""
    target = access.conversation_of(request.user, conversation_id)
    form = TuningForm(request.POST)
    try:
        if not form.is_valid():
            raise responses.refusal_of(form)
        target = settings.tune(request.user, target, **form.tuning())
    except SendRefused as refusal:
        response = responses.refused(request, target, refusal)
        if request.htmx:
            response["HX-Retarget"] = "#tuning-refusal"
        return response
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    return render(request, "chat/_tools.html", responses.conversation_context(target))
