"""The list of a user's conversations as the sidebar shows it: newest first, in groups by day, a page at a time."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from chatsite.accounts.models import User
from chatsite.chat import access
from chatsite.chat.models import Conversation, Generation

PAGE_ROWS = 50


@dataclass(frozen=True)
class Row:
    """A conversation; `group` names the days it belongs to where another group begins, else it is empty."""

    conversation: Conversation
    is_writing: bool
    group: str = ""


@dataclass(frozen=True)
class Page:
    rows: list[Row]
    next: str  # where the following page begins; empty on the last


def page(user: User, after: str = "") -> Page:
    """The rows after `after` (a page's `next`; anything else begins at the top)."""
    writing = Generation.objects.filter(message__conversation=OuterRef("pk"), status=Generation.Status.ACTIVE)
    rows = access.conversations_of(user).annotate(is_writing=Exists(writing)).order_by("-updated_at", "-pk")
    group = ""
    if (place := _parse(after)) is not None:
        moment, pk = place
        rows = rows.filter(Q(updated_at__lt=moment) | Q(updated_at=moment, pk__lt=pk))
        group = _group(moment)
    found = list(rows[: PAGE_ROWS + 1])
    shown: list[Row] = []
    for conversation in found[:PAGE_ROWS]:
        fresh = _group(conversation.updated_at)
        shown.append(Row(conversation, conversation.is_writing, fresh if fresh != group else ""))
        group = fresh
    last = shown[-1].conversation if len(found) > PAGE_ROWS else None
    return Page(shown, f"{last.updated_at.isoformat()}~{last.pk}" if last else "")


def _parse(place: str) -> tuple[datetime.datetime, UUID] | None:
    moment, _, pk = place.partition("~")
    try:
        found = parse_datetime(moment)
        return (found, UUID(pk)) if found and found.tzinfo else None
    except ValueError:
        return None


def _group(moment: datetime.datetime) -> str:
    days = (timezone.localdate() - timezone.localtime(moment).date()).days
    if days <= 0:
        return "Today"
    return "Yesterday" if days == 1 else "Last week" if days <= 7 else "Earlier"
