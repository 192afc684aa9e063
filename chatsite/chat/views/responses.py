"""What every view of the chat answers with: the page, a list of messages drawn anew, a refusal that loses nothing.

Every form also works without a script: it posts, and the answer is a redirect. With htmx the answer is a fragment. A
refusal keeps what was typed and says why. Used by the view modules alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from uuid import UUID

from django import forms
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django_htmx.middleware import HtmxDetails

from chatsite.accounts.models import User
from chatsite.chat import inference
from chatsite.chat.actions import organize, presets
from chatsite.chat.actions import queue as actions_queue
from chatsite.chat.errors import ModelUnknown, SendRefused
from chatsite.chat.generation import model_choice
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access, retention
from chatsite.chat.queries import sidebar as sidebar_rows
from chatsite.chat.rendering import message
from chatsite.chat.views import context_usage
from chatsite.chat.views.forms import MessageForm, TuningForm
from inference.errors import StoreUnavailable
from inference.messages.cards import ModelCard

BEFORE_SHOWN = 4  # messages before one that was jumped to


class ChatRequest(HttpRequest):
    """A request of a person who is signed in."""

    user: User
    htmx: HtmxDetails


P = ParamSpec("P")
R = TypeVar("R", bound=HttpResponse)
View = Callable[Concatenate[ChatRequest, P], HttpResponse]


def signed_in(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """Only for people signed in; a fragment's request sends the whole page to the sign-in, which leads back to it."""

    @wraps(view)
    def checked(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if request.user.is_authenticated:
            response = view(cast(ChatRequest, request), *args, **kwargs)
        elif getattr(request, "htmx", False):
            came_from = cast(ChatRequest, request).htmx.current_url_abs_path or reverse("chat:home")
            response = HttpResponse(status=401, headers={"HX-Redirect": redirect_to_login(came_from).url})
        else:
            back = request.get_full_path() if request.method == "GET" else reverse("chat:home")
            response = redirect_to_login(back)
        add_never_cache_headers(response)
        patch_vary_headers(response, ("HX-Request", "HX-Target", "Cookie"))
        return response

    return cast(Callable[Concatenate[HttpRequest, P], HttpResponse], checked)


def page(
    request: ChatRequest,
    target: Conversation | None,
    *,
    status: int = 200,
    with_sidebar: bool = False,
    show_from: str = "",
    **more: object,
) -> HttpResponse:
    """The whole page, or with htmx the conversation alone, which is read with this. `show_from`, a message's id, makes
    the list begin no later than shortly before it."""
    if target is not None and target.is_unread:
        organize.mark(request.user, target, is_unread=False)
    show_from = show_from or request.GET.get("at", "")
    shown = conversation_context(target, show_all="all" in request.GET, show_from=show_from)
    if target is None:
        shown |= beginning_context(request, shown["models"])
        if shown["beginning"].is_missing and request.method == "GET":
            status = 404
    context = {**shown, **more, "new_key": uuid.uuid4()}
    if target is not None:
        context["leaving"] = retention.warning_on_page(request.user, target)
    is_fragment = bool(request.htmx) and not request.htmx.history_restore_request
    if not is_fragment or with_sidebar:
        context |= sidebar_context(request.user, target, sidebar_rows.Choice.of(request.GET))
    context |= {"is_fragment": is_fragment, "with_sidebar": with_sidebar}
    return render(request, "chat/page.html", context, status=status)


def conversation_context(target: Conversation | None, *, show_all: bool = False, show_from: str = "") -> dict[str, Any]:
    served = served_models()
    if target is None:
        return {
            "conversation": None,
            "models": served,
            "model": served[0] if served else None,
            "turns": [],
            **context_usage.limits(),
        }
    queue = queue_before_path(target)
    path = access.path_ids_of(target)
    begin = 0 if show_all else max(0, len(path) - message.SHOWN_MESSAGES)
    if show_from:
        place = next((index for index, found in enumerate(path) if str(found) == show_from), begin)
        begin = max(0, min(begin, place - BEFORE_SHOWN))
    shown = access.messages_of(path[begin:])
    turns = message.shown_path(target, shown)
    last = next((turn.generation for turn in reversed(turns) if turn.generation), None)
    name = target.model or (last.model if last else "")
    model = next((card for card in served if card.name == name), None)
    return {
        "conversation": target,
        "turns": turns,
        "has_earlier": begin > 0,
        "is_busy": any(turn.is_active for turn in turns),
        "models": served,
        "model": model or (served[0] if served and not name else None),
        "model_name": name,
        "choice": choice_of(target),
        "tuning": target,
        "is_away": bool(target.model) and model is None,
        "queue": queue,
        "gauge": context_usage.gauge_of(target, model),
        **context_usage.limits(),
    }


def beginning_context(request: ChatRequest, served: list[ModelCard]) -> dict[str, Any]:
    """What a conversation that has not begun can begin with, and its settings: those of the persona that the address
    names, or what a form that was refused had in them."""
    beginning = presets.beginning(request.user, request.GET.get("persona") or request.POST.get("persona", ""))
    tuning: Conversation | dict[str, Any] = beginning.frame
    name = beginning.frame.model
    if "system_prompt" in request.POST:
        tuning = TuningForm(request.POST).typed()
        name = tuning["model"]
    context: dict[str, Any] = {"beginning": beginning, "tuning": tuning, "choice": choice_of(Conversation(model=name))}
    if name:
        model = next((card for card in served if card.name == name), None)
        context |= {"model": model, "model_name": name, "is_away": model is None}
    return context


def queue_before_path(target: Conversation) -> actions_queue.Queue:
    """The queue; the path is looked at afresh after it, so that what comes in between is on it, or is asked for."""
    queue = actions_queue.queue_of(target)
    access.look_again(target)
    return queue


def queue_context(target: Conversation) -> dict[str, Any]:
    """What stands around the message box of a conversation that goes on."""
    queue = queue_before_path(target)
    last = Generation.objects.filter(message=target.leaf_id).values_list("model", flat=True).first()
    model = next((card for card in served_models() if card.name == (target.model or last)), None)
    return {
        "conversation": target,
        "queue": queue,
        "gauge": context_usage.gauge_of(target, model),
    }


def choice_of(target: Conversation | None) -> model_choice.Choice | None:
    """What would answer the next message, for a sentence where that is not what was asked for."""
    try:
        return model_choice.choose(target.model if target else "")
    except ModelUnknown:
        return None


def served_models() -> list[ModelCard]:
    try:
        return inference.inference_client().models()
    except StoreUnavailable:
        return []


def sidebar_context(
    user: User, target: Conversation | None, choice: sidebar_rows.Choice | None = None
) -> dict[str, Any]:
    return {"sidebar": sidebar_rows.page(user, choice=choice), "conversation": target}


def log(request: ChatRequest, target: Conversation, show_from: str = "") -> HttpResponse:
    """The list of messages drawn anew, in place of the one shown."""
    context = {
        **conversation_context(target, show_from=show_from),
        "new_key": uuid.uuid4(),
        "refreshes_key": True,
    }
    response = render(request, "chat/_log.html", context)
    response["HX-Retarget"] = "#log"
    response["HX-Reswap"] = "outerHTML"
    have_asked_again(response, context["queue"])
    return response


def have_asked_again(response: HttpResponse, queue: actions_queue.Queue, *, is_changed: bool = False) -> None:
    """Have the page ask for news once more, soon, where something is about to come that no stream of it tells."""
    if queue.is_calling:
        response["HX-Trigger"] = "news:soon"
    elif queue.is_moving or is_changed:
        response["HX-Trigger"] = "news:later"


def branch(request: ChatRequest, target: Conversation, place: UUID | None = None) -> HttpResponse:
    """Another path of the conversation, or the same after a change; the reader is at the message `place`."""
    if not request.htmx:
        at = f"?at={place}#m-{place}" if place else ""
        return redirect(reverse("chat:conversation", args=(target.pk,)) + at)
    return log(request, access.conversation_of(request.user, target.pk), str(place or ""))


def done(request: ChatRequest, shown: Message | None) -> HttpResponse:
    if request.htmx:
        return HttpResponse(status=204)
    return redirect("chat:conversation", shown.conversation_id) if shown else redirect("chat:home")


def invalid(request: ChatRequest, target: Conversation | None, form: MessageForm) -> HttpResponse:
    return refused(request, target, refusal_of(form))


def refusal_of(form: forms.Form) -> SendRefused:
    """The first thing that is wrong with what was typed."""
    name, messages = next(iter(form.errors.items()))
    return SendRefused(f"{form[name].label}: {messages[0]}", field=name)


def refused(request: ChatRequest, target: Conversation | None, refusal: SendRefused) -> HttpResponse:
    """Say why nothing was stored, above what was typed, which stays."""
    if request.htmx:
        html = render_to_string("chat/_error.html", {"refusal": refusal}, request)
        response = HttpResponse(html, status=refusal.http_status)
        response["HX-Retarget"] = "#refusal"
        response["HX-Reswap"] = "innerHTML"
    else:
        response = page(
            request, target, status=refusal.http_status, refusal=refusal, typed=request.POST.get("text", "")
        )
    return with_retry_after(response, refusal)


def with_retry_after(response: HttpResponse, refusal: SendRefused | None) -> HttpResponse:
    """Every answer that says a refusal goes through here: what passes by itself says when."""
    if refusal is not None and refusal.retry_after_seconds:
        response["Retry-After"] = str(refusal.retry_after_seconds)
    return response
