"""What every view of the chat answers with: the page, a list of messages drawn anew, a refusal that loses nothing.

Every form also works without a script: it posts, and the answer is a redirect. With htmx the answer is a fragment. A
refusal keeps what was typed and says why. Used by the view modules alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.cache import add_never_cache_headers, patch_vary_headers
from django_htmx.middleware import HtmxDetails

from chatsite.accounts.models import User
from chatsite.chat import access, dispatch, fragments
from chatsite.chat import sidebar as sidebar_rows
from chatsite.chat.errors import SendRefused
from chatsite.chat.forms import MessageForm
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


def page(
    request: ChatRequest,
    target: Conversation | None,
    *,
    status: int = 200,
    with_sidebar: bool = False,
    **more: object,
) -> HttpResponse:
    """The whole page, or with htmx the conversation alone."""
    context = {**conversation_context(target, show_all="all" in request.GET), **more, "new_key": uuid.uuid4()}
    is_fragment = bool(request.htmx) and not request.htmx.history_restore_request
    if not is_fragment or with_sidebar:
        context |= sidebar_context(request.user, target)
    context |= {"is_fragment": is_fragment, "with_sidebar": with_sidebar}
    return render(request, "chat/page.html", context, status=status)


def conversation_context(target: Conversation | None, *, show_all: bool = False) -> dict[str, Any]:
    served = served_models()
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


def served_models() -> list[ModelCard]:
    try:
        return dispatch.inference_client().models()
    except StoreUnavailable:
        return []


def sidebar_context(user: User, target: Conversation | None) -> dict[str, Any]:
    return {"sidebar": sidebar_rows.page(user), "conversation": target}


def log(request: ChatRequest, target: Conversation) -> HttpResponse:
    """The list of messages drawn anew, in place of the one shown."""
    context = {
        **conversation_context(target),
        **sidebar_context(request.user, target),
        "new_key": uuid.uuid4(),
        "refreshes_key": True,
    }
    response = render(request, "chat/_log.html", context)
    response["HX-Retarget"] = "#log"
    response["HX-Reswap"] = "outerHTML"
    return response


def branch(request: ChatRequest, target: Conversation) -> HttpResponse:
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    return log(request, access.conversation_of(request.user, target.pk))


def done(request: ChatRequest, shown: Message | None) -> HttpResponse:
    if request.htmx:
        return HttpResponse(status=204)
    return redirect("chat:conversation", shown.conversation_id) if shown else redirect("chat:home")


def invalid(request: ChatRequest, target: Conversation | None, form: MessageForm) -> HttpResponse:
    field, messages = next(iter(form.errors.items()))
    return refused(request, target, SendRefused(f"{field}: {messages[0]}"))


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
    seconds = refusal.facts.get("retry_after_seconds")
    if seconds:
        response["Retry-After"] = str(seconds)
    return response
