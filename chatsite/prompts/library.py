"""Who may use, make, change and share which prompts. One verb, one transaction.

One's own are one's own to change; shared ones are for everybody to use, and staff alone share. A name of one's own
hides a shared one of that name. Called by the views; synchronous.
"""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.chat.queries import access
from chatsite.chat.text import clean_typed
from chatsite.prompts.blanks import MAX_BLANKS, blanks_of
from chatsite.prompts.models import PromptTemplate
from chatsite.usage.words import grouped

MAX_PROMPTS = 200  # of one person
COMMANDS = frozenset(
    "new model think no_think tools no_tools system regenerate stop export clear help quote temp".split()
)  # names the menu has already


class PromptRefused(Exception):
    """Nothing was stored; the sentence says why. `field` is the form's field it is about."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


def own(user: User) -> QuerySet[PromptTemplate]:
    return PromptTemplate.objects.filter(owner=user)


def own_one(user: User, pk: UUID) -> PromptTemplate:
    """Raises Http404 unless it is the user's."""
    return access.only(own(user), pk)


def usable(user: User) -> list[PromptTemplate]:
    """The user's own and those shared with everybody, by name; of two shared ones of a name the elder."""
    rows = PromptTemplate.objects.filter(Q(owner=user) | Q(is_shared=True, owner__is_active=True))
    found: dict[str, PromptTemplate] = {}
    for row in rows.order_by("name", "id"):
        if row.name not in found or row.owner_id == user.pk:
            found[row.name] = row
    return list(found.values())


def usable_one(user: User, pk: UUID) -> PromptTemplate:
    """Raises Http404 unless the user may use it."""
    return access.only(PromptTemplate.objects.filter(Q(owner=user) | Q(is_shared=True, owner__is_active=True)), pk)


def save(user: User, prompt: PromptTemplate) -> PromptTemplate:
    """Keep a new prompt of the user's or a changed one.

    Raises:
        PromptRefused: nothing was stored.
    """
    if prompt.is_shared and not user.is_staff:
        raise PromptRefused(_("Only staff share prompts with everybody."), "is_shared")
    if prompt.name in COMMANDS:
        raise PromptRefused(_("A command has this name already."), "name")
    prompt.owner, prompt.text = user, clean_typed(prompt.text).strip()
    if not prompt.text:
        raise PromptRefused(_("The prompt is empty."), "text")
    most = settings.SMOLFLEET.max_message_chars
    if len(prompt.text) > most:
        numbers = {"chars": grouped(len(prompt.text)), "most": grouped(most)}
        raise PromptRefused(_("The prompt has %(chars)s characters; at most %(most)s fit.") % numbers, "text")
    if len(blanks_of(prompt.text)) > MAX_BLANKS:
        raise PromptRefused(_("A prompt has at most %(most)d blanks.") % {"most": MAX_BLANKS}, "text")
    try:
        with transaction.atomic():
            User.objects.select_for_update(no_key=True).get(pk=user.pk)
            if prompt._state.adding and own(user).count() >= MAX_PROMPTS:
                raise PromptRefused(_("You have %(most)d prompts; that is the most.") % {"most": MAX_PROMPTS})
            prompt.save()
    except IntegrityError:
        raise PromptRefused(_("You have a prompt of this name already."), "name") from None
    return prompt


def delete(user: User, pk: UUID) -> None:
    """Raises Http404 unless it is the user's."""
    own_one(user, pk).delete()
