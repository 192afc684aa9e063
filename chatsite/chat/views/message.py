"""What can be done to one message or answer: look at it, stop it, ask again, edit, go on, delete, fork, change version.

What needs a word first (a new text, a choice, a yes) is asked on a panel: under the message with a script, on a page
of its own without.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from chatsite.chat.actions import retry as actions_retry
from chatsite.chat.actions import send, tool_calls, tree
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import Message
from chatsite.chat.queries import access
from chatsite.chat.rendering import message as rendering_message
from chatsite.chat.views import responses
from chatsite.chat.views.forms import MessageForm

THINKING = {"on": True, "off": False}


@require_GET
@responses.signed_in
def message(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """One message as it is now: what a stream that could not go on asks for."""
    return _article(request, access.message_of(request.user, message_id))


@require_POST
@responses.signed_in
def stop(request: responses.ChatRequest, generation_id: uuid.UUID) -> HttpResponse:
    """Ask for the end of an answer. It is shown once it has ended."""
    generation = access.generation_of(request.user, generation_id)
    tool_calls.stop(request.user, generation)
    return responses.done(request, generation.message)


@require_POST
@responses.signed_in
def retry(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    return _retried(request, access.message_of(request.user, message_id))


@require_http_methods(["GET", "POST"])
@responses.signed_in
def again(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """The ways in which an answer can be written again; and one of them, chosen."""
    answer = access.message_of(request.user, message_id)
    if request.method == "GET":
        return _panel(request, "again", answer, models=responses.served_models())
    return _retried(
        request,
        answer,
        model=request.POST.get("model", ""),
        thinking=THINKING.get(request.POST.get("thinking", "")),
        style=request.POST.get("style", ""),
    )


@require_POST
@responses.signed_in
def resume(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """Go on with an answer that was stopped or cut."""
    answer = access.message_of(request.user, message_id)
    try:
        sent = actions_retry.resume(request.user, answer)
    except SendRefused as refusal:
        return responses.refused(request, answer.conversation, refusal)
    return responses.branch(request, answer.conversation, sent.answer.pk)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def edit(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """Another wording of a question, which is answered anew; or another text of an answer, in place."""
    found = access.message_of(request.user, message_id)
    if request.method == "GET":
        return _panel(request, "edit", found, key=uuid.uuid4(), text=found.content)
    form = MessageForm(request.POST)
    try:
        if not form.is_valid():
            raise responses.refusal_of(form)
        text, key = form.cleaned_data["text"], form.cleaned_data["key"]
        if found.role == Message.Role.USER:
            sent = send.edit(request.user, found, text, idempotency_key=key)
            return responses.branch(request, found.conversation, sent.message.pk)
        found = tree.rewrite(request.user, found, text)
    except SendRefused as refusal:
        if request.htmx:
            return responses.refused(request, found.conversation, refusal)
        typed = request.POST.get("text", "")
        return _panel(request, "edit", found, refusal=refusal, key=uuid.uuid4(), text=typed)
    if request.htmx:
        return _article(request, found)
    return responses.branch(request, found.conversation, found.pk)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def remove(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """Say how many messages go with this one; and delete them."""
    found = access.message_of(request.user, message_id)
    if request.method == "GET":
        return _panel(request, "remove", found, number=tree.num_below(request.user, found))
    expected = request.POST.get("number", "")
    number = int(expected[:9]) if expected.isascii() and expected.isdigit() else None
    try:
        tree.remove(request.user, found, num_expected=number)
    except SendRefused as refusal:
        return responses.refused(request, found.conversation, refusal)
    return responses.branch(request, found.conversation, found.parent_id)


@require_POST
@responses.signed_in
def fork(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    found = access.message_of(request.user, message_id)
    try:
        made = tree.fork(request.user, found)
    except SendRefused as refusal:
        return responses.refused(request, found.conversation, refusal)
    if not request.htmx:
        return redirect("chat:conversation", made.pk)
    response = responses.page(request, made, with_sidebar=True)
    response["HX-Push-Url"] = reverse("chat:conversation", args=(made.pk,))
    response["HX-Retarget"] = "#chat"
    response["HX-Reswap"] = "outerHTML"
    return response


@require_GET
@responses.signed_in
def more(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """What is seldom done, and how the message came about."""
    return _panel(request, "more", access.message_of(request.user, message_id))


@require_POST
@responses.signed_in
def select(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """Show another of several versions, and what followed it."""
    found = access.message_of(request.user, message_id)
    return responses.branch(request, tree.select(request.user, found), found.pk)


def _retried(request: responses.ChatRequest, answer: Message, **how: Any) -> HttpResponse:
    try:
        sent = actions_retry.retry(request.user, answer, **how)
    except SendRefused as refusal:
        return responses.refused(request, answer.conversation, refusal)
    return responses.branch(request, answer.conversation, sent.answer.pk)


def _shown(request: responses.ChatRequest, found: Message) -> rendering_message.Shown:
    fresh = Message.objects.select_related("generation", "feedback").get(pk=found.pk)
    (turn,) = rendering_message.shown_path(access.conversation_of(request.user, found.conversation_id), [fresh])
    return turn


def _article(request: responses.ChatRequest, found: Message) -> HttpResponse:
    first_seen = rendering_message.first_seen(found.conversation)
    context = {"shown": _shown(request, found), "is_news": True, "first_seen": first_seen}
    return render(request, "chat/_message.html", context)


def _panel(
    request: responses.ChatRequest, name: str, found: Message, *, refusal: SendRefused | None = None, **more: object
) -> HttpResponse:
    """The panel `name` of a message that is settled, or the page that holds it alone."""
    turn = _shown(request, found)
    panel = f"chat/_{name}.html"
    context = {"shown": turn, "panel": panel, "refusal": refusal, "conversation": found.conversation, **more}
    template = panel if request.htmx else "chat/panel.html"
    response = render(request, template, context, status=refusal.http_status if refusal else 200)
    return responses.with_retry_after(response, refusal)
