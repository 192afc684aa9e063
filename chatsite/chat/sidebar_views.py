"""The list of conversations, and what can be done to one of them there."""

from __future__ import annotations

import uuid

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from chatsite.chat import access, actions, page
from chatsite.chat import sidebar as sidebar_rows
from chatsite.chat.forms import TitleForm


@require_GET
@page.signed_in
def sidebar(request: page.ChatRequest) -> HttpResponse:
    """The list of conversations, or its following page."""
    after = request.GET.get("after", "")
    rows = sidebar_rows.page(request.user, after)
    if not request.htmx:
        return redirect("chat:home")
    return render(request, "chat/_rows.html", {"sidebar": rows, "is_following_page": bool(after)})


@require_POST
@page.signed_in
def rename(request: page.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
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
@page.signed_in
def delete(request: page.ChatRequest, conversation_id: uuid.UUID) -> HttpResponse:
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
