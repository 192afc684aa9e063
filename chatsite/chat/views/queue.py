"""The queue above the message box: change, remove or send what waits, and what is new since the page was drawn."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from chatsite.chat.actions import queue
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import Conversation
from chatsite.chat.queries import access
from chatsite.chat.rendering import message as rendering_message
from chatsite.chat.views import responses


@require_POST
@responses.signed_in
def edit(request: responses.ChatRequest, conversation_id: uuid.UUID, entry_id: uuid.UUID) -> HttpResponse:
    text = request.POST.get("text", "")
    return _changed(request, conversation_id, lambda target: queue.edit(request.user, target, entry_id, text))


@require_POST
@responses.signed_in
def remove(request: responses.ChatRequest, conversation_id: uuid.UUID, entry_id: uuid.UUID) -> HttpResponse:
    return _changed(request, conversation_id, lambda target: queue.remove(request.user, target, entry_id))


@require_POST
@responses.signed_in
def send_now(request: responses.ChatRequest, conversation_id: uuid.UUID, entry_id: uuid.UUID) -> HttpResponse:
    return _changed(request, conversation_id, lambda target: queue.send_now(request.user, target, entry_id))


@require_GET
@responses.signed_in
def news(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """What the page does not show yet, behind the message `leaf` that is the last there; and the queue as it is now.

    Asked for when an answer has ended, when a page is looked at again, and while something is about to be sent.
    """
    target = access.conversation_of(request.user, conversation_id)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    return drawn(request, target, "chat/_news.html")


def drawn(request: responses.ChatRequest, target: Conversation, template: str) -> HttpResponse:
    """The queue and what belongs beside it; with `leaf`, also the messages that came after that one.

    After a change it is asked for once more: the page may hear of an answer's end while this is on its way.
    """
    context: dict[str, Any] = {**responses.queue_context(target), "new_key": uuid.uuid4(), "turns": ()}
    leaf = request.GET.get("leaf") or request.POST.get("leaf", "")
    path = access.path_ids_of(target)
    if leaf and (called := _with_calls(target, leaf)):
        context["called"] = called
    if leaf and path and str(path[-1]) != leaf:
        index = next((index for index, found in enumerate(path) if str(found) == leaf), None)
        if index is None:  # another branch is shown now
            return responses.log(request, target)
        context["turns"] = rendering_message.shown_path(target, access.messages_of(path[index + 1 :]))
    response = render(request, template, context)
    responses.have_asked_again(response, context["queue"], is_changed=request.method == "POST")
    return response


def _with_calls(target: Conversation, leaf: str) -> rendering_message.Shown | None:
    """The last message the page shows, where it is an answer that called tools: their results may have come."""
    try:
        message = target.messages.filter(pk=uuid.UUID(leaf), calls__isnull=False).select_related("generation").first()
    except ValueError:
        return None
    return rendering_message.shown(message) if message else None


def _changed(
    request: responses.ChatRequest, conversation_id: uuid.UUID, change: Callable[[Conversation], object]
) -> HttpResponse:
    target = access.conversation_of(request.user, conversation_id)
    try:
        change(target)
    except SendRefused as refusal:
        return responses.refused(request, target, refusal)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    target.refresh_from_db()
    return drawn(request, target, "chat/_news.html")
