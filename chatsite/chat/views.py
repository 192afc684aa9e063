"""Pages and fragments of the chat: parse, act, render. One template serves a page and its fragment.

Every form also works without a script: it posts, and the answer is a redirect. With htmx the answer is a fragment. A
refusal keeps what was typed and says why. Reads go through `access`, writes through `actions`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from django.contrib.auth.views import redirect_to_login
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from django_htmx.middleware import HtmxDetails

from chatsite.accounts.models import User
from chatsite.chat import access, actions, dispatch, fragments
from chatsite.chat import sidebar as sidebar_rows
from chatsite.chat.errors import SendRefused
from chatsite.chat.forms import MessageForm, StartForm, TitleForm
from chatsite.chat.models import Conversation, Message
from inference.errors import StoreUnavailable
from inference.protocol import ModelCard


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


@require_GET
@signed_in
def home(request: ChatRequest) -> HttpResponse:
    """A conversation that has not begun."""
    return _page(request, None)


@require_GET
@signed_in
def conversation(request: ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    return _page(request, access.conversation_of(request.user, conversation_id))


@require_POST
@signed_in
def start(request: ChatRequest) -> HttpResponse:
    """The first message of a new conversation. The same press of Send twice begins one."""
    form = StartForm(request.POST)
    if not form.is_valid():
        return _invalid(request, None, form)
    typed = form.cleaned_data
    try:
        begun = _begin(request.user, typed)
    except SendRefused as refusal:
        return _refused(request, None, refusal)
    if not request.htmx:
        return redirect("chat:conversation", begun.pk)
    response = _page(request, access.conversation_of(request.user, begun.pk), with_sidebar=True)
    response["HX-Push-Url"] = reverse("chat:conversation", args=(begun.pk,))
    response["HX-Retarget"] = "#chat"
    response["HX-Reswap"] = "outerHTML"
    return response


@require_POST
@signed_in
def send(request: ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    target = access.conversation_of(request.user, conversation_id)
    form = MessageForm(request.POST)
    if not form.is_valid():
        return _invalid(request, target, form)
    typed = form.cleaned_data
    try:
        sent = actions.send_message(request.user, target, typed["text"], idempotency_key=typed["key"])
    except SendRefused as refusal:
        return _refused(request, target, refusal)
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    target.refresh_from_db()
    context = {
        "turns": [fragments.shown(sent.message), fragments.shown(sent.answer)],
        "new_key": uuid.uuid4(),
        "conversation": target,
        **_sidebar(request.user, target),
    }
    if sent.is_repeat:  # the page may or may not show it already: draw the whole list anew
        return _log(request, target)
    return render(request, "chat/_sent.html", context)


@require_POST
@signed_in
def stop(request: ChatRequest, generation_id: uuid.UUID) -> HttpResponse:
    """Ask for the end of an answer. It is shown once it has ended."""
    generation = access.generation_of(request.user, generation_id)
    actions.stop(request.user, generation)
    return _done(request, generation.message)


@require_POST
@signed_in
def retry(request: ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    answer = access.message_of(request.user, message_id)
    try:
        actions.retry(request.user, answer)
    except SendRefused as refusal:
        return _refused(request, answer.conversation, refusal)
    return _branch(request, answer.conversation)


@require_POST
@signed_in
def select(request: ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """Show another of several answers, and what followed it."""
    return _branch(request, actions.select(request.user, access.message_of(request.user, message_id)))


@require_POST
@signed_in
def rename(request: ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    target = access.conversation_of(request.user, conversation_id)
    form = TitleForm(request.POST)
    if not form.is_valid():
        return HttpResponse(status=400)
    renamed = actions.rename(request.user, target, form.cleaned_data["title"])
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    row = sidebar_rows.Row(renamed, access.active_generations_of(renamed).exists())
    is_open = request.htmx.current_url_abs_path == reverse("chat:conversation", args=(renamed.pk,))
    context = {"row": row, "conversation": renamed if is_open else None, "shows_title": is_open}
    return render(request, "chat/_renamed.html", context)


@require_http_methods(["GET", "POST"])
@signed_in
def delete(request: ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """GET asks, for browsers without a script; POST deletes."""
    target = access.conversation_of(request.user, conversation_id)
    if request.method == "GET":
        return render(request, "chat/delete.html", {"conversation": target})
    was_open = request.htmx and request.htmx.current_url_abs_path == reverse("chat:conversation", args=(target.pk,))
    actions.delete(request.user, target)
    if request.htmx and not was_open:
        return HttpResponse()  # in place of its row
    if request.htmx:
        return HttpResponse(headers={"HX-Redirect": reverse("chat:home")})
    return redirect("chat:home")


@require_GET
@signed_in
def sidebar(request: ChatRequest) -> HttpResponse:
    """The list of conversations, or its following page."""
    after = request.GET.get("after", "")
    rows = sidebar_rows.page(request.user, after)
    if not request.htmx:
        return redirect("chat:home")
    return render(request, "chat/_rows.html", {"sidebar": rows, "is_following_page": bool(after)})


@require_GET
@signed_in
def earlier(request: ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
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


@require_GET
@signed_in
def message(request: ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """One message as it is now: what a stream that could not go on asks for."""
    found = access.message_of(request.user, message_id)
    found = Message.objects.select_related("generation").get(pk=found.pk)
    (turn,) = fragments.shown_path(access.conversation_of(request.user, found.conversation_id), [found])
    return render(request, "chat/_message.html", {"shown": turn})


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


def _page(
    request: ChatRequest,
    target: Conversation | None,
    *,
    status: int = 200,
    with_sidebar: bool = False,
    **more: object,
) -> HttpResponse:
    """The whole page, or with htmx the conversation alone."""
    context = {**_conversation(target, show_all="all" in request.GET), **more, "new_key": uuid.uuid4()}
    is_fragment = bool(request.htmx) and not request.htmx.history_restore_request
    if not is_fragment or with_sidebar:
        context |= _sidebar(request.user, target)
    context |= {"is_fragment": is_fragment, "with_sidebar": with_sidebar}
    return render(request, "chat/page.html", context, status=status)


def _conversation(target: Conversation | None, *, show_all: bool = False) -> dict[str, Any]:
    served = _served_models()
    if target is None:
        return {"conversation": None, "models": served, "model": served[0] if served else None, "turns": []}
    path = access.path_of(target)
    shown = path if show_all else path[-fragments.SHOWN_MESSAGES :]
    turns = fragments.shown_path(target, shown)
    last = next((turn.generation for turn in reversed(turns) if turn.generation), None)
    name = target.model or (last.model if last else "")
    model = next((card for card in served if card.name == name), None)
    return {
        "conversation": target,
        "turns": turns,
        "has_earlier": len(shown) < len(path),
        "is_busy": any(turn.is_active for turn in turns),
        "models": served,
        "model": model or (served[0] if served and not name else None),
        "model_name": name,
    }


def _served_models() -> list[ModelCard]:
    try:
        return dispatch.inference_client().models()
    except StoreUnavailable:
        return []


def _sidebar(user: User, target: Conversation | None) -> dict[str, Any]:
    return {"sidebar": sidebar_rows.page(user), "conversation": target}


def _log(request: ChatRequest, target: Conversation) -> HttpResponse:
    """The list of messages drawn anew, in place of the one shown."""
    context = {
        **_conversation(target),
        **_sidebar(request.user, target),
        "new_key": uuid.uuid4(),
        "refreshes_key": True,
    }
    response = render(request, "chat/_log.html", context)
    response["HX-Retarget"] = "#log"
    response["HX-Reswap"] = "outerHTML"
    return response


def _branch(request: ChatRequest, target: Conversation) -> HttpResponse:
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    return _log(request, access.conversation_of(request.user, target.pk))


def _done(request: ChatRequest, shown: Message | None) -> HttpResponse:
    if request.htmx:
        return HttpResponse(status=204)
    return redirect("chat:conversation", shown.conversation_id) if shown else redirect("chat:home")


def _invalid(request: ChatRequest, target: Conversation | None, form: MessageForm) -> HttpResponse:
    field, messages = next(iter(form.errors.items()))
    return _refused(request, target, SendRefused(f"{field}: {messages[0]}"))


def _refused(request: ChatRequest, target: Conversation | None, refusal: SendRefused) -> HttpResponse:
    """Say why nothing was stored, above what was typed, which stays."""
    if request.htmx:
        html = render_to_string("chat/_error.html", {"refusal": refusal}, request)
        response = HttpResponse(html, status=refusal.http_status)
        response["HX-Retarget"] = "#refusal"
        response["HX-Reswap"] = "innerHTML"
    else:
        response = _page(
            request, target, status=refusal.http_status, refusal=refusal, typed=request.POST.get("text", "")
        )
    seconds = refusal.facts.get("retry_after_seconds")
    if seconds:
        response["Retry-After"] = str(seconds)
    return response
