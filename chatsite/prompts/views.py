"""Pages of one's prompts, the menu's options, and a prompt's text with its blanks filled in."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from chatsite.chat.text import clean_typed
from chatsite.chat.views import responses
from chatsite.prompts import library
from chatsite.prompts.blanks import blanks_of, fill
from chatsite.prompts.forms import BlanksForm, PromptForm
from chatsite.prompts.library import PromptRefused
from chatsite.prompts.models import PromptTemplate


@require_GET
@responses.signed_in
def index(request: responses.ChatRequest) -> HttpResponse:
    """One's own prompts, and those that others share."""
    own = list(library.own(request.user))
    others = [row for row in library.usable(request.user) if row.owner_id != request.user.pk]
    return render(request, "prompts/index.html", {"own": own, "others": others})


@require_http_methods(["GET", "POST"])
@responses.signed_in
def edit(request: responses.ChatRequest, prompt_id: UUID | None = None) -> HttpResponse:
    """A new prompt, or a change of one's own."""
    row = library.own_one(request.user, prompt_id) if prompt_id else PromptTemplate()
    form = PromptForm(request.POST or None, instance=row, user=request.user)
    if request.method == "POST" and form.is_valid():
        try:
            library.save(request.user, form.save(commit=False))
        except PromptRefused as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            return redirect("prompts:index")
    status = 400 if request.method == "POST" else 200
    return render(request, "prompts/edit.html", {"form": form, "prompt_id": prompt_id}, status=status)


@require_http_methods(["GET", "POST"])
@responses.signed_in
def delete(request: responses.ChatRequest, prompt_id: UUID) -> HttpResponse:
    """GET asks, POST deletes."""
    row = library.own_one(request.user, prompt_id)
    if request.method == "GET":
        return render(request, "prompts/delete.html", {"prompt": row})
    library.delete(request.user, prompt_id)
    return redirect("prompts:index")


@require_GET
@responses.signed_in
def options(request: responses.ChatRequest) -> HttpResponse:
    """What the "/" menu of the message box offers beside its commands."""
    return render(request, "prompts/_options.html", {"prompts": library.usable(request.user)})


@require_http_methods(["GET", "POST"])
@responses.signed_in
def use(request: responses.ChatRequest, prompt_id: UUID) -> HttpResponse:
    """The prompt as plain text for the message box; while it has blanks that nobody filled in, the form for them."""
    row = library.usable_one(request.user, prompt_id)
    blanks = blanks_of(row.text)
    form = BlanksForm(blanks, request.POST if request.method == "POST" else None)
    if blanks and not form.is_valid():
        return render(request, "prompts/_blanks.html", {"prompt": row, "form": form})
    values = {name: clean_typed(typed) for name, typed in form.cleaned_data.items()} if blanks else {}
    text = fill(row.text, values)
    return HttpResponse(text, content_type="text/plain; charset=utf-8")
