"""The list of a user's conversations as the sidebar shows it: pinned first, then the newest, in groups by day and
month, a page at a time; or those of a tag, or the archive."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from chatsite.accounts.models import User
from chatsite.chat.models import Conversation, Generation, Tag
from chatsite.chat.queries import access

PAGE_ROWS = 50
MAX_ROWS = 500  # of a list that is asked for anew with all that was loaded of it


@dataclass(frozen=True)
class Choice:
    """Which conversations the list is of: all that are not archived, the archive, or those of one tag."""

    is_archive: bool = False
    tag_id: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Choice:
        tag = query.get("tag", "")
        return cls("archived" in query, int(tag) if tag.isdecimal() and len(tag) < 16 else None)

    @property
    def query(self) -> str:
        """As part of an address; empty for the whole list."""
        tag = {"tag": self.tag_id} if self.tag_id is not None else {}
        return urlencode({"archived": 1} if self.is_archive else tag)


@dataclass(frozen=True)
class Row:
    """A conversation; `group` names what it belongs to where another group begins, else it is empty."""

    conversation: Conversation
    is_writing: bool
    is_shared: bool = False  # by a link that stands
    group: str = ""


@dataclass(frozen=True)
class Page:
    rows: list[Row]
    next: str  # where the following page begins; empty on the last
    choice: Choice = Choice()
    tags: list[Tag] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """The same for pages that look the same."""
        shown = [
            (
                row.group,
                row.is_writing,
                row.is_shared,
                *(getattr(row.conversation, name) for name in ("pk", "title", "is_unread", "pinned_at", "archived_at")),
            )
            for row in self.rows
        ]
        told = repr((self.choice, self.next, [(tag.pk, tag.name) for tag in self.tags], shown))
        return hashlib.sha256(told.encode(errors="replace")).hexdigest()[:16]


def page(user: User, after: str = "", choice: Choice | None = None, count: int = 0) -> Page:
    """A page of rows, or `count` where that is more, after `after` (a page's `next`).

    Anything else begins at the top, with those pinned before the others.
    """
    choice = choice or Choice()
    rows = _rows(user, choice)
    writing, shared = set(_writing(user)), set(shared_of(user))
    place = _parse(after)
    shown: list[Row] = []
    group = ""
    if place is None:
        for conversation in rows.filter(pinned_at__isnull=False).order_by("-pinned_at", "-pk"):
            marks = (conversation.pk in writing, conversation.pk in shared)
            shown.append(Row(conversation, *marks, "" if shown else _("Pinned")))
    rows = rows.filter(pinned_at=None).order_by("-updated_at", "-pk")
    if place is not None:
        moment, pk = place
        rows = rows.filter(Q(updated_at__lt=moment) | Q(updated_at=moment, pk__lt=pk))
        group = _group(moment)
    count = max(PAGE_ROWS, min(count, MAX_ROWS))
    found = list(rows[: count + 1])
    for conversation in found[:count]:
        fresh = _group(conversation.updated_at)
        marks = (conversation.pk in writing, conversation.pk in shared)
        shown.append(Row(conversation, *marks, fresh if fresh != group else ""))
        group = fresh
    last = found[count - 1] if len(found) > count else None
    tags = list(Tag.objects.filter(owner=user)) if place is None else []
    return Page(shown, f"{last.updated_at.isoformat()}~{last.pk}" if last else "", choice, tags)


def _rows(user: User, choice: Choice) -> QuerySet[Conversation]:
    rows = access.conversations_of(user).filter(archived_at__isnull=not choice.is_archive)
    if choice.tag_id is not None and not choice.is_archive:
        rows = rows.filter(tags=choice.tag_id)
    return rows


def _writing(user: User) -> QuerySet[Generation, UUID]:
    """Conversations in which an answer is being written: few, by the limit on a user's active ones."""
    active = Generation.objects.filter(user=user, status=Generation.Status.ACTIVE, message__isnull=False)
    return active.values_list("message__conversation_id", flat=True)


def shared_of(user: User) -> QuerySet[Conversation, UUID]:
    """Conversations with a link that stands and has not ended."""
    lasts = Q(shares__expires_at=None) | Q(shares__expires_at__gt=timezone.now())
    shared = access.conversations_of(user).filter(lasts, shares__isnull=False, shares__revoked_at=None)
    return shared.order_by().values_list("pk", flat=True)


def _parse(place: str) -> tuple[datetime.datetime, UUID] | None:
    moment, _tilde, pk = place.partition("~")
    try:
        found = parse_datetime(moment)
        return (found, UUID(pk)) if found and found.tzinfo else None
    except ValueError:
        return None


def _group(moment: datetime.datetime) -> str:
    moment = timezone.localtime(moment)
    days = (timezone.localdate() - moment.date()).days
    if days <= 0:
        return _("Today")
    return _("Yesterday") if days == 1 else _("Last week") if days <= 7 else date_format(moment, "F Y")
