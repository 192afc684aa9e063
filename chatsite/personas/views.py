"""Pages of one's personas: the list, a new one or a change of one, and the end of one. Chats begin at `chat:home`."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from chatsite.chat.views import responses
from chatsite.personas import library
from chatsite.personas.forms import PersonaForm
from chatsite.personas.library import PersonaRefused
from chatsite.personas.models import Persona


@require_GET
@responses.signed_in
def index(request: responses.ChatRequest) -> HttpResponse:
    """One's own personas, and those that others share."""
    context = {"own": library.own(request.user), "others": library.shared_by_others(request.user)}
    return render(request, "personas/index.html", context)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def edit(request: responses.ChatRequest, persona_id: UUID | None = None) -> HttpResponse:
    """A new persona, or a change of one's own."""
    row = library.own_one(request.user, persona_id) if persona_id else Persona()
    typed = request.POST if request.method == "POST" else None
    form = PersonaForm(typed, persona=row, user=request.user, models=responses.served_models())
    if form.is_bound and form.is_valid():
        try:
            library.save(request.user, row, **form.changed())
        except PersonaRefused as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            return redirect("personas:index")
    context = {"form": form, "persona_id": persona_id}
    return render(request, "personas/edit.html", context, status=400 if form.is_bound else 200)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def delete(request: responses.ChatRequest, persona_id: UUID) -> HttpResponse:
    """GET asks, POST deletes."""
    row = library.own_one(request.user, persona_id)
    if request.method == "GET":
        return render(request, "personas/delete.html", {"persona": row})
    library.delete(request.user, persona_id)
    return redirect("personas:index")
