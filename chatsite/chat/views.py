"""The chat's page and its composer: open, begin, send, and older messages."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from chatsite.accounts.models import User
from chatsite.chat import access, actions, fragments, page
from chatsite.chat.errors import SendRefused
from chatsite.chat.forms import MessageForm, StartForm
from chatsite.chat.models import Conversation


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
        begun = _begin(request.user, typed)
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
        sent = actions.send_message(request.user, target, typed["text"], idempotency_key=typed["key"])
    except SendRefused as refusal:
        return page.refused(request, target, refusal)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    target.refresh_from_db()
    context = {
        "turns": [fragments.shown(sent.message), fragments.shown(sent.answer)],
        "new_key": uuid.uuid4(),
        "conversation": target,
        **page.sidebar_context(request.user, target),
    }
    if sent.is_repeat:  # the page may or may not show it already: draw the whole list anew
        return page.log(request, target)
    return render(request, "chat/_sent.html", context)


@require_GET
@page.signed_in
def earlier(request: page.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """The messages before one of them, for the upper end of a long conversation."""
    target = access.conversation_of(request.user, conversation_id)
    path = access.path_of(target)
    before = request.GET.get("before", "")
    end = next((index for index, found in enumerate(path) if str(found.pk) == before), 0)
    if not request.htmx:
        return redirect(reverse("chat:conversation", args=(target.pk,)) + "?all=1")
    begin = max(0, end - fragments.SHOWN_MESSAGES)
    turns = fragments.shown_path(target, path[begin:end])
    return render(request, "chat/_turns.html", {"turns": turns, "conversation": target, "has_earlier": begin > 0})


def _begin(user: User, typed: dict[str, Any]) -> Conversation:
    """The conversation that this press of Send began, made now or by its first arrival."""
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)
        if typed["key"] is not None:
            repeat = access.conversations_of(user).filter(messages__idempotency_key=typed["key"]).first()
            if repeat is not None:
                return repeat
        begun = actions.start_conversation(
            user, model=typed["model"], system_prompt=typed["system_prompt"], thinking=typed["thinking"]
        )
        actions.send_message(user, begun, typed["text"], idempotency_key=typed["key"])
        return begun
