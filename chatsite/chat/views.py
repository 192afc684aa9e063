"""The chat's page and its composer: open, begin, send, and older messages."""

from __future__ import annotations

import uuid

from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from chatsite.chat import access, actions, fragments, page, queue_views, queueing, quoting, tuning
from chatsite.chat.errors import SendRefused
from chatsite.chat.forms import MessageForm, StartForm, TuningForm
from chatsite.chat.models import QueuedMessage


@require_GET
@page.signed_in
def home(request: page.ChatRequest) -> HttpResponse:
    """A conversation that has not begun."""
    return page.page(request, None)


@require_GET
@page.signed_in
def conversation(request: page.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    return page.page(request, access.conversation_of(request.user, conversation_id))


@require_POST
@page.signed_in
def start(request: page.ChatRequest) -> HttpResponse:
    """The first message of a new conversation. The same press of Send twice begins one."""
    form = StartForm(request.POST)
    if not form.is_valid():
        return page.invalid(request, None, form)
    typed = form.cleaned_data
    try:
        begun = actions.begin(
            request.user,
            typed["text"],
            idempotency_key=typed["key"],
            attachments=request.POST.getlist("files"),
            **form.tuning(),
        )
    except SendRefused as refusal:
        return page.refused(request, None, refusal)
    if not request.htmx:
        return redirect("chat:conversation", begun.pk)
    response = page.page(request, access.conversation_of(request.user, begun.pk), with_sidebar=True)
    response["HX-Push-Url"] = reverse("chat:conversation", args=(begun.pk,))
    response["HX-Retarget"] = "#chat"
    response["HX-Reswap"] = "outerHTML"
    return response


@require_POST
@page.signed_in
def send(request: page.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    target = access.conversation_of(request.user, conversation_id)
    form = MessageForm(request.POST)
    if not form.is_valid():
        return page.invalid(request, target, form)
    typed = form.cleaned_data
    try:
        sent = queueing.say(
            request.user,
            target,
            typed["text"],
            idempotency_key=typed["key"],
            files=request.POST.getlist("files"),
        )
    except SendRefused as refusal:
        return page.refused(request, target, refusal)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    target.refresh_from_db()
    if isinstance(sent, QueuedMessage):
        return queue_views.drawn(request, target, "chat/_queued.html")
    context = {
        **page.queue_context(target),
        "turns": [fragments.shown(sent.message), fragments.shown(sent.answer)],
        "new_key": uuid.uuid4(),
        "choice": page.choice_of(target),
    }
    if sent.is_repeat:  # the page may or may not show it already: draw the whole list anew
        return page.log(request, target)
    return render(request, "chat/_sent.html", context)


@require_POST
@page.signed_in
def quote(request: page.ChatRequest) -> HttpResponse:
    """Have the fixed document recited, in the conversation named or in a new one."""
    name = request.POST.get("conversation", "")
    target = access.conversation_of(request.user, name) if name else None
    try:
        with transaction.atomic():
            target = target or actions.start_conversation(request.user)
            quoting.quote(request.user, target)
    except SendRefused as refusal:
        return page.refused(request, target, refusal)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    if name:
        return page.branch(request, target)
    return HttpResponse(headers={"HX-Redirect": reverse("chat:conversation", args=(target.pk,))})


@require_GET
@page.signed_in
def earlier(request: page.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """The messages before one of them, for the upper end of a long conversation."""
    target = access.conversation_of(request.user, conversation_id)
    path = access.path_ids_of(target)
    before = request.GET.get("before", "")
    end = next((index for index, found in enumerate(path) if str(found) == before), 0)
    if not request.htmx:
        return redirect(reverse("chat:conversation", args=(target.pk,)) + "?all=1")
    begin = max(0, end - fragments.SHOWN_MESSAGES)
    turns = fragments.shown_path(target, access.messages_of(path[begin:end]))
    return render(request, "chat/_turns.html", {"turns": turns, "conversation": target, "has_earlier": begin > 0})


@require_POST
@page.signed_in
def tune(request: page.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """Settings of a conversation; those that are not sent stay."""
    target = access.conversation_of(request.user, conversation_id)
    form = TuningForm(request.POST)
    try:
        if not form.is_valid():
            raise page.refusal_of(form)
        target = tuning.tune(request.user, target, **form.tuning())
    except SendRefused as refusal:
        response = page.refused(request, target, refusal)
        if request.htmx:
            response["HX-Retarget"] = "#tuning-refusal"
        return response
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    return render(request, "chat/_tools.html", page.conversation_context(target))
