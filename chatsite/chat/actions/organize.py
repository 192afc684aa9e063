"""How somebody's conversations are arranged: their names, pins, tags, the archive, the mark of the unread, their end.

One verb, one transaction; afterwards the person's other windows are told (`live`). What is archived is not pinned. Tags
are made by their first use and go with their last. Synchronous; called by `sidebar` and, for looking, by `page`.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat import errors, notify
from chatsite.chat.models import TAG_CHARS, TITLE_CHARS, Conversation, Message, Tag
from chatsite.chat.notify import Change
from chatsite.chat.queries import access
from chatsite.chat.text import clean_typed, title_of

MAX_PINNED = 50
MAX_TAGS = 100  # of one person
MAX_TAGS_OF_ONE = 12  # of one conversation
MAX_CHOSEN = 500  # conversations of one bulk verb


def rename(user: User, conversation: Conversation, title: str) -> Conversation:
    """Give it the owner's title; an empty one gives the first words back.

    Raises:
        Http404: the conversation is not this user's, or no longer there; so for every verb here.
    """
    conversation = access.conversation_of(user, conversation.pk)
    own = " ".join(clean_typed(title).split())[:TITLE_CHARS]
    first = conversation.messages.filter(role=Message.Role.USER).order_by("pk").first()
    conversation.title = own or (title_of(first.content) if first else "")
    conversation.is_title_own = bool(own)
    conversation.save(update_fields=["title", "is_title_own"])
    notify.tell(user.pk, conversation.pk, Change.NAMED)
    return conversation


def pin(user: User, conversation: Conversation, *, is_on: bool) -> None:
    """Keep it above all others, out of the archive, or let go of it. Pinned already: it keeps its place.

    Raises:
        TooManyPinned: as many as may be are pinned.
    """
    with transaction.atomic():
        _lock(user)
        conversation = access.conversation_of(user, conversation.pk)
        if is_on == bool(conversation.pinned_at):
            return
        if is_on and access.conversations_of(user).filter(pinned_at__isnull=False).count() >= MAX_PINNED:
            raise errors.TooManyPinned(max_pinned=MAX_PINNED)
        conversation.pinned_at = timezone.now() if is_on else None
        conversation.archived_at = None if is_on else conversation.archived_at
        conversation.save(update_fields=["pinned_at", "archived_at"])
        notify.tell(user.pk, conversation.pk, Change.MOVED)


def archive(user: User, conversation: Conversation, *, is_on: bool) -> None:
    """Take it out of the list, where search still finds it, or bring it back."""
    access.conversation_of(user, conversation.pk)
    archive_all(user, [conversation.pk], is_on=is_on)


def mark(user: User, conversation: Conversation, *, is_unread: bool) -> None:
    """Set or clear the mark of the unread."""
    conversation = access.conversation_of(user, conversation.pk)
    fresh = access.conversations_of(user).filter(pk=conversation.pk, is_unread=not is_unread)
    if fresh.update(is_unread=is_unread):
        notify.tell(user.pk, conversation.pk, Change.SEEN)


def tag(user: User, conversation: Conversation, name: str) -> Tag:
    """Put the conversation under a tag, which is made if the user has none of that name, whatever its case.

    Raises:
        NotATag: the name is empty or too long.
        TooManyTags: the user or the conversation has as many as may be.
    """
    name = " ".join(clean_typed(name).split())
    if not 0 < len(name) <= TAG_CHARS:
        raise errors.NotATag(max_chars=TAG_CHARS)
    with transaction.atomic():
        _lock(user)
        conversation = access.conversation_of(user, conversation.pk)
        found = Tag.objects.filter(owner=user, name__iexact=name).order_by("pk").first()
        if found is None and Tag.objects.filter(owner=user).count() >= MAX_TAGS:
            raise errors.TooManyTags(max_tags=MAX_TAGS)
        if conversation.tags.exclude(name=found.name if found else name).count() >= MAX_TAGS_OF_ONE:
            raise errors.TooManyTags(max_tags=MAX_TAGS_OF_ONE)
        found = found or Tag.objects.create(owner=user, name=name)
        conversation.tags.add(found)
        notify.tell(user.pk, conversation.pk, Change.MOVED)
        return found


def untag(user: User, conversation: Conversation, name: str) -> None:
    """Take a tag off; with its last conversation it goes. Not there: nothing happens."""
    with transaction.atomic():
        _lock(user)
        conversation = access.conversation_of(user, conversation.pk)
        conversation.tags.remove(*conversation.tags.filter(name=clean_typed(name)))
        _drop_unused_tags(user)
        notify.tell(user.pk, conversation.pk, Change.MOVED)


def delete(user: User, conversation: Conversation) -> None:
    """Take a conversation away for good, from Postgres and from Redis; what is still being written ends at once."""
    access.conversation_of(user, conversation.pk)
    delete_all(user, [conversation.pk])


def archive_all(user: User, chosen: Iterable[UUID], *, is_on: bool = True) -> int:
    """Archive those of `chosen` that are the user's; how many they were."""
    with transaction.atomic():
        pks = list(_chosen(user, chosen).values_list("pk", flat=True))
        for pk in pks:
            notify.tell(user.pk, pk, Change.MOVED)
        changes = {"archived_at": timezone.now(), "pinned_at": None} if is_on else {"archived_at": None}
        access.conversations_of(user).filter(pk__in=pks, archived_at__isnull=is_on).update(**changes)
        return len(pks)


def delete_all(user: User, chosen: Iterable[UUID]) -> int:
    """Delete those of `chosen` that are the user's, for good; how many they were."""
    with transaction.atomic():
        _lock(user)
        rows = list(_chosen(user, chosen))
        for row in rows:
            notify.tell(user.pk, row.pk, Change.GONE)
        # Each deleted generation is forgotten in Redis: see apps.py.
        access.conversations_of(user).filter(pk__in=[row.pk for row in rows]).delete()
        _drop_unused_tags(user)
        return len(rows)


def _chosen(user: User, pks: Iterable[UUID]) -> QuerySet[Conversation]:
    return access.conversations_of(user).filter(pk__in=list(pks)[:MAX_CHOSEN]).order_by("pk")


def _lock(user: User) -> None:
    """Counts hold until the commit: one such verb of a person at a time."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)


def _drop_unused_tags(user: User) -> None:
    Tag.objects.filter(owner=user, conversations=None).delete()
