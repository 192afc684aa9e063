"""The page of a temporary chat, and its questions, whose fields `role` and `content` repeat the turns before.

The page needs its script: without one there is nowhere to keep the history, and it says so.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from chatsite.chat.actions import temporary
from chatsite.chat.errors import AnswerRunning, SendRefused
from chatsite.chat.views import responses
from chatsite.chat.views.forms import StartForm


@require_http_methods(["GET", "POST"])
@responses.signed_in
def chat(request: responses.ChatRequest) -> HttpResponse:
    if request.method == "GET":
        return _page(request)
    form = StartForm(request.POST)
    roles, contents = request.POST.getlist("role"), request.POST.getlist("content")
    try:
        if not form.is_valid():
            raise responses.refusal_of(form)
        if "writing" in request.POST:  # the page has the answer only once it is written
            raise AnswerRunning
        text = form.cleaned_data["text"]
        asked = temporary.ask(request.user, list(zip(roles, contents)), text, **form.tuning())
    except SendRefused as refusal:
        return responses.refused(request, None, refusal) if request.htmx else _page(request, refusal)
    context: dict[str, Any] = {"question": asked.question, "shown": temporary.shown(asked.generation)}
    if not request.htmx:
        return _page(request, **context)
    return render(request, "chat/_temporary_sent.html", context)


@require_GET
@responses.signed_in
def answer(request: responses.ChatRequest, generation_id: uuid.UUID) -> HttpResponse:
    """One answer as it is now: what a stream that could not go on asks for."""
    return HttpResponse(temporary.answer_html(temporary.generation_of(request.user, generation_id)))


@require_POST
@responses.signed_in
def seen(request: responses.ChatRequest, generation_id: uuid.UUID) -> HttpResponse:
    temporary.forget(request.user, generation_id)
    return HttpResponse(status=204)


def _page(request: responses.ChatRequest, refusal: SendRefused | None = None, **more: object) -> HttpResponse:
    models = responses.served_models()
    context: dict[str, Any] = {
        **responses.sidebar_context(request.user, None),
        "models": models,
        "model": models[0] if models else None,
        **responses.beginning_context(request, models),
        "refusal": refusal,
        "typed": request.POST.get("text", "") if refusal else "",
        **more,
    }
    status = 404 if context["beginning"].is_missing and request.method == "GET" else 200
    response = render(request, "chat/temporary.html", context, status=refusal.http_status if refusal else status)
    return responses.with_retry_after(response, refusal)
