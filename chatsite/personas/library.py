"""Who may begin a chat with which personas, and make, change and share them. One verb, one transaction.

One's own are one's own to change; shared ones are for everybody to begin with, and staff alone share. Settings are
checked as those of a conversation are. Called by the views, and by the chat through `presets`; synchronous.
"""

from __future__ import annotations

from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Case, Q, QuerySet, When
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.chat.actions import settings
from chatsite.chat.actions.presets import Preset
from chatsite.chat.actions.settings import Tuning
from chatsite.chat.errors import InstructionsTooLong, ModelUnknown, SendRefused
from chatsite.chat.queries import access
from chatsite.chat.text import clean_typed
from chatsite.personas.models import LINE_CHARS, NAME_CHARS, Persona

MAX_PERSONAS = 100  # of one person
# What the engine's side calls a value that is out of range, and what the form calls it.
FIELDS = {"system_prompt", "thinking_budget", "temperature", "top_p", "max_tokens"}


class PersonaRefused(Exception):
    """Nothing was stored; the sentence says why. `field` is the form's field it is about."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class Presets:
    """Personas as the chat offers them."""

    def presets_of(self, user: User) -> list[Preset]:
        return [Preset(row.pk, row.name, row.line) for row in usable(user).only("name", "line", "owner_id")]

    def tuning_of(self, user: User, preset_id: UUID) -> Tuning:
        return access.only(usable(user), preset_id).tuning


def own(user: User) -> QuerySet[Persona]:
    return Persona.objects.filter(owner=user)


def own_one(user: User, pk: UUID) -> Persona:
    """Raises Http404 unless it is the user's."""
    return access.only(own(user), pk)


def shared_by_others(user: User) -> QuerySet[Persona]:
    return Persona.objects.filter(is_shared=True, owner__is_active=True).exclude(owner=user)


def usable(user: User) -> QuerySet[Persona]:
    """The user's own and then those shared with everybody, each part by name."""
    rows = Persona.objects.filter(Q(owner=user) | Q(is_shared=True, owner__is_active=True))
    return rows.order_by(Case(When(owner=user, then=0), default=1), "name", "id")


def save(user: User, persona: Persona, **changed: object) -> Persona:
    """Keep a new persona of the user's, or one of theirs, with what is `changed`: name, line, is_shared and settings.

    Raises:
        PersonaRefused: nothing was stored.
    """
    model_before = "" if persona._state.adding else persona.model
    for name, value in changed.items():
        setattr(persona, name, value)
    if persona.is_shared and not user.is_staff:
        raise PersonaRefused(_("Only staff share personas with everybody."), "is_shared")
    persona.owner = user
    persona.name = _one_line(persona.name, NAME_CHARS, "name")
    persona.line = _one_line(persona.line, LINE_CHARS, "line")
    if not persona.name:
        raise PersonaRefused(_("A persona needs a name."), "name")
    _check_settings(persona, model_before)
    try:
        with transaction.atomic():
            User.objects.select_for_update(no_key=True).get(pk=user.pk)
            if persona._state.adding and own(user).count() >= MAX_PERSONAS:
                raise PersonaRefused(_("You have %(most)d personas; that is the most.") % {"most": MAX_PERSONAS})
            persona.save()
    except IntegrityError:
        raise PersonaRefused(_("You have a persona of this name already."), "name") from None
    return persona


def delete(user: User, pk: UUID) -> None:
    """Conversations that began with it stay as they are. Raises Http404 unless it is the user's."""
    own_one(user, pk).delete()


def _check_settings(persona: Persona, model_before: str) -> None:
    """The model that it has may stay, also while nobody serves it."""
    wanted = persona.tuning
    if wanted["model"] == model_before:
        del wanted["model"]
    try:
        persona.system_prompt = settings.checked(**wanted)["system_prompt"]
    except ModelUnknown as refusal:
        raise PersonaRefused(refusal.message, "model") from refusal
    except InstructionsTooLong as refusal:
        raise PersonaRefused(refusal.message, "system_prompt") from refusal
    except SendRefused as refusal:
        param = refusal.facts.get("param")
        raise PersonaRefused(refusal.message, str(param) if param in FIELDS else None) from refusal


def _one_line(typed: str, most: int, field: str) -> str:
    line = " ".join(clean_typed(typed).split())
    if len(line) > most:
        raise PersonaRefused(
            _("At most %(most)d characters fit here, not %(chars)d.") % {"most": most, "chars": len(line)}, field
        )
    return line
