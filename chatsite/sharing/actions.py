"""Links: made, brought up to date, given an end, revoked; and opened, which is the one way to what they show.

One standing link per conversation. Its address stays while it stands; a revoked one is dead for good, and sharing again
makes another. Synchronous; called by the views.
"""

from __future__ import annotations

import datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.utils import timezone
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.chat.errors import SendRefused
from chatsite.chat.models import Conversation
from chatsite.chat.queries import access
from chatsite.sharing import snapshots
from chatsite.sharing.models import Share

log = structlog.get_logger(__name__)


class ShareRefused(SendRefused):
    """No link was made or changed."""

    code = "share_refused"


def share(
    user: User, conversation_id: UUID, *, scope: str, days: int | None = None, with_thoughts: bool = False
) -> Share:
    """Make the conversation's link, or bring the one that stands up to date: snapshot, scope, end. `days` None: no end.

    Raises:
        ShareRefused: nothing to show yet, or the site shares with nobody but its own people.
        Http404: the conversation is not this user's.
    """
    conversation = access.conversation_of(user, conversation_id)
    if scope == Share.Scope.ANYONE and not settings.SMOLFLEET.share_anyone:
        raise ShareRefused(_("Links for anyone are switched off on this site."))
    snapshot = snapshots.of(conversation, with_thoughts=with_thoughts)
    if not snapshot["turns"]:
        raise ShareRefused(_("There is nothing in this conversation to share yet."))
    now = timezone.now()
    values = {
        "scope": Share.Scope(scope),
        "title": conversation.title,
        "snapshot": snapshot,
        "has_thoughts": with_thoughts,
        "updated_at": now,
        "expires_at": now + datetime.timedelta(days=days) if days else None,
    }
    with transaction.atomic():
        Conversation.objects.select_for_update(no_key=True).get(pk=conversation.pk)
        link, is_new = Share.objects.update_or_create(
            owner=user, conversation=conversation, revoked_at=None, defaults=values
        )
    log.info("shared", share_id=str(link.pk), scope=link.scope, is_new=is_new)
    return link


def standing_link_of(user: User, conversation: Conversation) -> Share | None:
    """The conversation's link, an expired one included."""
    return links_of(user).filter(conversation=conversation).first()


def links_of(user: User) -> QuerySet[Share]:
    """The user's links that are not revoked, without their snapshots."""
    return Share.objects.filter(owner=user, revoked_at=None).defer("snapshot").select_related("conversation")


def revoke(user: User, share_id: UUID) -> Share:
    """End a link for good, and forget what it showed. Raises Http404."""
    with transaction.atomic():
        link = access.only(links_of(user).select_for_update(of=("self",)), share_id)
        link.revoked_at, link.snapshot, link.title = timezone.now(), {"version": 1, "turns": []}, ""
        link.save(update_fields=["revoked_at", "snapshot", "title"])  # the audit log hears of it
    log.info("link revoked", share_id=str(link.pk))
    return link


def public_link(token: str) -> Share | None:
    """The link if anyone may open it, without asking who wants to."""
    link = _standing(token)
    is_open = link is not None and link.scope == Share.Scope.ANYONE and settings.SMOLFLEET.share_anyone
    return link if is_open else None


def open_link(visitor: User | AnonymousUser, token: str) -> Share:
    """The link for whoever may see it.

    Raises:
        Http404: unknown, expired, revoked, or not for this person: all alike.
    """
    link = _standing(token)
    if link is None or not access.may_enter(visitor):
        raise Http404
    if link.scope == Share.Scope.ME and link.owner_id != visitor.pk:
        raise Http404
    return link


def _standing(token: str) -> Share | None:
    if "\0" in token:  # Postgres refuses to look for it
        return None
    link = Share.objects.filter(token=token, revoked_at=None, owner__is_active=True).first()
    return None if link is None or link.is_expired else link
