"""Upload, removal and the plain view of files. The list above the message box is drawn anew by each; without a script
the whole page is, with what was typed."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from chatsite.chat.actions import attachments
from chatsite.chat.files import extract
from chatsite.chat.models import Conversation
from chatsite.chat.queries import access
from chatsite.chat.views import responses


@require_POST
@responses.signed_in
def upload(request: responses.ChatRequest, conversation_id: uuid.UUID | None = None) -> HttpResponse:
    """Files of the field `file`. Each is taken or refused by itself; the first refusal is said."""
    target = access.conversation_of(request.user, conversation_id) if conversation_id else None
    refusal: extract.FileRefused | None = None
    uploaded = request.FILES.getlist("file")
    for file in uploaded:
        try:
            if (file.size or 0) > settings.SMOLFLEET.max_file_bytes:
                raise extract.too_large(extract.name_of(file.name or ""))
            attachments.add(request.user, target, file.name or "", file.read())
        except extract.FileRefused as refused:
            refusal = refusal or refused
    return _drawn(request, target, refusal)


@require_POST
@responses.signed_in
def remove(request: responses.ChatRequest, attachment_id: uuid.UUID) -> HttpResponse:
    return _drawn(request, attachments.remove(request.user, attachment_id).draft_of, None)


@require_POST
@responses.signed_in
def read_again(request: responses.ChatRequest, attachment_id: uuid.UUID) -> HttpResponse:
    """Read a draft in the encoding chosen on its chip; the field's name has its id, for others stand beside."""
    refusal: extract.FileRefused | None = None
    row = attachments.draft_of(request.user, attachment_id)
    try:
        attachments.read_again(row, request.POST.get(f"codec-{attachment_id}", ""))
    except extract.FileRefused as refused:
        refusal = refused
    return _drawn(request, row.draft_of, refusal)


@require_GET
@responses.signed_in
def view(request: responses.ChatRequest, attachment_id: uuid.UUID) -> HttpResponse:
    """The text of a file, as the model reads it."""
    return render(request, "chat/file.html", {"file": attachments.attachment_of(request.user, attachment_id)})


def _drawn(
    request: responses.ChatRequest, target: Conversation | None, refusal: extract.FileRefused | None
) -> HttpResponse:
    if not request.htmx:
        typed = request.POST.get("text", "")
        status = refusal.http_status if refusal else 200
        return responses.page(request, target, status=status, refusal=refusal, typed=typed)
    # 200 also with a refusal: other files of the same press may have been taken, and the list shows which.
    return render(request, "chat/_files.html", {"conversation": target, "refusal": refusal, "says_refusal": True})
