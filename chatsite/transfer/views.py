"""Take conversations away, and bring them in."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from chatsite.chat.queries import access
from chatsite.chat.views import responses
from chatsite.rules import effective
from chatsite.transfer import importing, reading, writing
from chatsite.transfer.errors import ImportRefused


@require_GET
@responses.signed_in
def page_of_both(request: responses.ChatRequest) -> HttpResponse:
    return _page(request)


@require_POST
@responses.signed_in
def bring_in(request: responses.ChatRequest) -> HttpResponse:
    file = request.FILES.get("file")
    try:
        if file is None:
            raise ImportRefused(_("Choose a file first."))
        summary = importing.import_file(request.user, file, file.size or 0)
    except ImportRefused as refusal:
        return _page(request, status=refusal.http_status, refusal=refusal, name=file.name if file else "")
    for sentence in summary.sentences():
        messages.success(request, sentence)
    for sentence in summary.complaints():
        messages.warning(request, _("Not imported: %s") % sentence)
    return redirect("transfer:page")


@require_GET
@responses.signed_in
def export(request: responses.ChatRequest, conversation_id: uuid.UUID, form: str) -> HttpResponse:
    if form not in writing.FORMS:
        raise Http404
    record = reading.record_of(access.conversation_of(request.user, conversation_id))
    data = writing.written(record, form, with_thoughts="thoughts" in request.GET)
    response = HttpResponse(data, content_type=f"{writing.FORMS[form]}; charset=utf-8")
    _as_download(response, writing.file_name(record, form))
    return response


@require_GET
@responses.signed_in
def export_all(request: responses.ChatRequest) -> HttpResponse:
    response = StreamingHttpResponse(writing.zip_of_all(request.user), content_type="application/zip")
    _as_download(response, f"{_('Chats')} {timezone.localdate():%Y-%m-%d}.zip")
    return response  # type: ignore[return-value]  # a response all the same


def _page(request: responses.ChatRequest, status: int = 200, **more: object) -> HttpResponse:
    context = {"retention_days": effective.rules_of(request.user).retention_days, **more}
    return render(request, "transfer/page.html", context, status=status)


def _as_download(response: HttpResponse | StreamingHttpResponse, name: str) -> None:
    response["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    response["X-Content-Type-Options"] = "nosniff"
