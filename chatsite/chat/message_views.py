"""What can be done to one message or answer: look at it, stop it, ask again, show another version."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from chatsite.chat import access, actions, fragments, page
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import Message


@require_GET
@page.signed_in
def message(request: page.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """One message as it is now: what a stream that could not go on asks for."""
    found = access.message_of(request.user, message_id)
    found = Message.objects.select_related("generation").get(pk=found.pk)
    (turn,) = fragments.shown_path(access.conversation_of(request.user, found.conversation_id), [found])
    return render(request, "chat/_message.html", {"shown": turn})


@require_POST
@page.signed_in
def stop(request: page.ChatRequest, generation_id: uuid.UUID) -> HttpResponse:
    """Ask for the end of an answer. It is shown once it has ended."""
    generation = access.generation_of(request.user, generation_id)
    actions.stop(request.user, generation)
    return page.done(request, generation.message)


@require_POST
@page.signed_in
def retry(request: page.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    answer = access.message_of(request.user, message_id)
    try:
        actions.retry(request.user, answer)
    except SendRefused as refusal:
        return page.refused(request, answer.conversation, refusal)
    return page.branch(request, answer.conversation)


@require_POST
@page.signed_in
def select(request: page.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """Show another of several answers, and what followed it."""
    return page.branch(request, actions.select(request.user, access.message_of(request.user, message_id)))
