"""The list of conversations, and what can be done to one or several of them there.

Every verb is a form that works without a script: it leads back to the conversation, or home. With htmx the page is told
(`rows:changed`) that its list is to be asked for anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from chatsite.accounts.models import User
from chatsite.chat.actions import organize
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import Conversation, Tag
from chatsite.chat.queries import access, retention
from chatsite.chat.queries import sidebar as sidebar_rows
from chatsite.chat.views import responses
from chatsite.chat.views.forms import TitleForm

CHANGED = {"HX-Trigger": "rows:changed"}

VERBS: dict[str, Callable[[User, Conversation, str], object]] = {
    "pin": lambda user, target, _name: organize.pin(user, target, is_on=True),
    "unpin": lambda user, target, _name: organize.pin(user, target, is_on=False),
    "archive": lambda user, target, _name: organize.archive(user, target, is_on=True),
    "unarchive": lambda user, target, _name: organize.archive(user, target, is_on=False),
    "read": lambda user, target, _name: organize.mark(user, target, is_unread=False),
    "unread": lambda user, target, _name: organize.mark(user, target, is_unread=True),
    "tag": organize.tag,
    "untag": organize.untag,
}
BULK_VERBS: dict[str, Callable[[User, list[uuid.UUID]], int]] = {
    "archive": lambda user, chosen: organize.archive_all(user, chosen),
    "unarchive": lambda user, chosen: organize.archive_all(user, chosen, is_on=False),
    "delete": organize.delete_all,
}


@require_GET
@responses.signed_in
def sidebar(request: responses.ChatRequest) -> HttpResponse:
    """The list of conversations, or its following page; nothing when it is as the page has it (`digest`)."""
    after, count = request.GET.get("after", ""), request.GET.get("count", "")
    choice = sidebar_rows.Choice.of(request.GET)
    if not request.htmx:
        return redirect(f"{reverse('chat:home')}?{choice.query}" if choice.query else "chat:home")
    rows = sidebar_rows.page(
        request.user, after, choice, int(count) if count.isdecimal() and len(count) < 5 else sidebar_rows.PAGE_ROWS
    )
    if not after and request.GET.get("digest") == rows.digest:
        return HttpResponse(status=204)
    return render(request, "chat/_rows.html", {"sidebar": rows, "is_following_page": bool(after)})


@require_GET
@responses.signed_in
def menu(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """What can be done to one conversation: a sheet in its row, or a page."""
    target = access.conversation_of(request.user, conversation_id)
    context = {
        "conversation": target,
        "its_tags": list(target.tags.all()),
        "tags": list(Tag.objects.filter(owner=request.user)),
        "leaving": retention.warning(request.user, target),
    }
    return render(request, "chat/_menu.html" if request.htmx else "chat/menu.html", context)


@require_POST
@responses.signed_in
def arrange(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """One verb on one conversation; `name` is that of a tag."""
    target = access.conversation_of(request.user, conversation_id)
    verb = VERBS.get(request.POST.get("verb", ""))
    if verb is None:
        return HttpResponse(_("There is no such thing to do."), status=400, content_type="text/plain; charset=utf-8")
    try:
        verb(request.user, target, request.POST.get("name", ""))
    except SendRefused as refusal:
        return responses.refused(request, target, refusal)
    if request.htmx:
        return HttpResponse(status=204, headers=CHANGED)
    return redirect("chat:conversation", target.pk)


@require_POST
@responses.signed_in
def rename(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    target = access.conversation_of(request.user, conversation_id)
    form = TitleForm(request.POST)
    if not form.is_valid():
        return HttpResponse(status=400)
    renamed = organize.rename(request.user, target, form.cleaned_data["title"])
    if not request.htmx:
        return redirect("chat:conversation", target.pk)
    is_shared = sidebar_rows.shared_of(request.user).filter(pk=renamed.pk).exists()
    row = sidebar_rows.Row(renamed, access.active_generations_of(renamed).exists(), is_shared)
    is_open = _is_open(request, [renamed.pk])
    context = {"row": row, "conversation": renamed if is_open else None, "shows_title": is_open}
    return render(request, "chat/_renamed.html", context)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def delete(request: responses.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
    """GET asks, for browsers without a script; POST deletes."""
    target = access.conversation_of(request.user, conversation_id)
    if request.method == "GET":
        return render(request, "chat/delete.html", {"conversation": target})
    was_open = _is_open(request, [target.pk])
    organize.delete(request.user, target)
    if request.htmx and not was_open:
        return HttpResponse()  # in place of its row
    if request.htmx:
        return HttpResponse(headers={"HX-Redirect": reverse("chat:home")})
    return redirect("chat:home")


@require_POST
@responses.signed_in
def bulk(request: responses.ChatRequest) -> HttpResponse:
    """One verb on several conversations. First it says how many they are; only `confirmed` does it."""
    name = request.POST.get("verb", "")
    verb = BULK_VERBS.get(name)
    pks = [pk for pk in map(_uuid, request.POST.getlist("chosen")) if pk is not None]
    chosen = access.conversations_of(request.user).filter(pk__in=pks[: organize.MAX_CHOSEN]).order_by("-updated_at")
    if verb is None or not chosen:
        return responses.refused(request, None, SendRefused(_("Choose at least one conversation first.")))
    if "confirmed" not in request.POST:
        template = "chat/_bulk.html" if request.htmx else "chat/bulk.html"
        return render(request, template, {"chosen": list(chosen), "verb": name})
    was_open = name == "delete" and _is_open(request, pks)
    num_done = verb(request.user, pks)
    if request.htmx and not was_open:
        return HttpResponse(headers=CHANGED)  # in place of the question
    words = {
        "archive": ngettext("%d conversation archived.", "%d conversations archived.", num_done),
        "unarchive": ngettext("%d conversation brought back.", "%d conversations brought back.", num_done),
        "delete": ngettext("%d conversation deleted.", "%d conversations deleted.", num_done),
    }
    if request.htmx:
        return HttpResponse(headers={"HX-Redirect": reverse("chat:home")})
    messages.success(request, words[name] % num_done)
    return redirect("chat:home")


def _is_open(request: responses.ChatRequest, pks: list[uuid.UUID]) -> bool:
    """Whether the page that asks shows one of these conversations."""
    shown = request.htmx.current_url_abs_path if request.htmx else None
    return shown is not None and any(shown.startswith(reverse("chat:conversation", args=(pk,))) for pk in pks)


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
