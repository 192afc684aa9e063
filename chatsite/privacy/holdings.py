"""How much the site keeps of a person, counted, for the page on which they look it up and before they delete it all.

Reads rows, writes none, and loads no text.
"""

from __future__ import annotations

from dataclasses import dataclass

from allauth.usersessions.models import UserSession
from django.db.models import Q
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import User
from chatsite.audit.models import AuditEntry
from chatsite.chat.models import Attachment, Feedback, Generation, Message, QueuedMessage
from chatsite.personas.models import Persona
from chatsite.prompts.models import PromptTemplate
from chatsite.review.models import AccessEvent
from chatsite.sharing.models import Share
from chatsite.usage.models import UsageDay


@dataclass(frozen=True)
class Holding:
    """So many of a kind. `place` is where the person sees them, empty where that is no page of its own."""

    kind: str | Promise
    number: int
    place: str = ""
    stays: bool = False  # when the account goes: without anything that says who it was


def of(user: User) -> list[Holding]:
    """Everything, what matters most first."""
    return [
        Holding(_("Conversations"), user.conversations.count(), reverse("chat:home")),
        Holding(_("Messages"), Message.objects.filter(conversation__owner=user).count()),
        Holding(_("Messages that wait to be sent"), QueuedMessage.objects.filter(conversation__owner=user).count()),
        Holding(_("Files"), Attachment.objects.filter(owner=user).count()),
        Holding(_("Links to conversations"), Share.objects.filter(owner=user).count(), reverse("sharing:mine")),
        Holding(_("Prompts"), PromptTemplate.objects.filter(owner=user).count(), reverse("prompts:index")),
        Holding(_("Personas"), Persona.objects.filter(owner=user).count(), reverse("personas:index")),
        Holding(_("Ratings of answers"), Feedback.objects.filter(message__conversation__owner=user).count()),
        Holding(_("API keys"), user.api_keys.count(), reverse("api:keys")),
        Holding(_("Sessions"), UserSession.objects.filter(user=user).count(), reverse("usersessions_list")),
        Holding(
            _("Days with usage"),
            UsageDay.objects.filter(user=user).order_by().values("day").distinct().count(),
            reverse("usage:mine"),
        ),
        Holding(
            _("Answers outside of conversations, without their text"),
            Generation.objects.filter(user=user, message=None).count(),
        ),
        Holding(
            _("Records of your account: sign-ins, changes"),
            AuditEntry.objects.filter(Q(actor=user) | Q(subject=user)).count(),
            stays=True,
        ),
        Holding(
            _("Records of who opened your conversations"),
            AccessEvent.objects.filter(subject=user).count(),
            reverse("review:mine"),
            stays=True,
        ),
    ]
