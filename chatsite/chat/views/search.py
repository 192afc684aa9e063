"""Search: what is found, as a list below the box or as a page, and the way from a hit to its place."""

from __future__ import annotations

import json
import uuid
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET

from chatsite.chat.actions import tree
from chatsite.chat.queries import access
from chatsite.chat.queries import search as searching
from chatsite.chat.views import responses


@require_GET
@responses.signed_in
def search(request: responses.ChatRequest) -> HttpResponse:
    typed = request.GET.get("q", "")
    results = searching.find(request.user, typed, request.GET.get("after", ""))
    shown = typed[: searching.MAX_QUERY_CHARS].encode(errors="replace").decode().strip()
    more = urlencode({"q": shown, "after": results.next}) if results.next else ""
    context = {"results": results, "typed": shown, "more": more}
    return render(request, "chat/_found.html" if request.htmx else "chat/search.html", context)


@require_GET
@responses.signed_in
def show(request: responses.ChatRequest, message_id: uuid.UUID) -> HttpResponse:
    """The conversation with this message in view, on the branch that holds it.

    A GET although it may change which branch is shown: it is a link, to be opened in a new tab or sent to oneself.
    """
    message = access.message_of(request.user, message_id)
    target = message.conversation
    if message.pk not in access.path_ids_of(target):
        tree.select(request.user, message)
        target = access.conversation_of(request.user, target.pk)
    address = f"{reverse('chat:conversation', args=(target.pk,))}?at={message.pk}#m-{message.pk}"
    if not request.htmx:
        return redirect(address)
    response = responses.page(request, target, show_from=str(message.pk))
    response["HX-Push-Url"] = address
    response["HX-Trigger-After-Settle"] = json.dumps({"message:found": {"id": f"m-{message.pk}"}})
    return response
