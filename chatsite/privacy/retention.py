"""What goes by age: conversations by their owners' rules, and what is of no use any more.

    conversations   whose last message is older than their owner's rule allows, pinned and archived ones, too
    answers         that belong to no conversation (of `/v1`, titles, temporary chats): their records, without a text
    links           long after they ended or were revoked
    sessions        that have ended
    audit entries   older than the site's rule

Bounded: a run takes so many rows, the oldest first, a batch to a transaction, and the next run goes on. One process at
a time. Conversations with an answer being written stay until it has ended. Called hourly by `tasks` and by
`manage.py retain`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import structlog
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from chatsite import advisory_lock
from chatsite.audit import log as audit
from chatsite.audit.models import Action, AuditEntry
from chatsite.chat import notify
from chatsite.chat.models import Conversation, Generation, Tag
from chatsite.rules import effective
from chatsite.sharing.models import Share

log = structlog.get_logger(__name__)

BATCH_ROWS = 100  # conversations of one transaction, and of one look at what hangs on them
MAX_CONVERSATIONS = 10_000  # of one run; what is left is taken by the next
BATCH_RECORDS = 1_000
MAX_RECORDS = 100_000  # answers without a conversation, of one run
RECORD_DAYS = 30  # they stay at most; fewer where their owner's conversations do
LINK_DAYS = 30  # after the end of a link, so that its owner still sees that there was one
UNSEEN_HOURS = 24  # a session's entry may be a moment older than the session; so long nobody asks


@dataclass
class Gone:
    """How many rows a run deleted, or would delete."""

    conversations: int = 0
    answers: int = 0
    links: int = 0
    sessions: int = 0
    audit_entries: int = 0

    @property
    def is_worth_a_record(self) -> bool:
        """Whether the audit log hears of it. Sessions end all the time, and everybody knows when."""
        return any((self.conversations, self.answers, self.links, self.audit_entries))


def due() -> Gone:
    """What a run without bounds would delete just now; nothing is deleted."""
    days = effective.site_rules().audit_days
    old = Q(at__lt=_ago(days)) if days is not None else Q(pk__in=())
    return Gone(
        conversations=sum(rows.count() for rows in _old_conversations()),
        answers=sum(rows.count() for rows in _old_answers()),
        links=_old_links().count(),
        sessions=Session.objects.filter(expire_date__lt=timezone.now()).count(),
        audit_entries=AuditEntry.objects.filter(old).count(),
    )


def retain() -> Gone | None:
    """Delete what is due; None when another process is just doing it.

    Raises:
        DatabaseError: what was deleted before is on record.
    """
    with advisory_lock.held(advisory_lock.RETENTION) as is_held:
        if not is_held:
            return None
        gone = Gone()
        try:
            _delete(gone)
        finally:
            if gone.is_worth_a_record:
                audit.record(Action.CONVERSATIONS_DELETED, detail=asdict(gone))
                log.info("deleted by age", **asdict(gone))
    return gone


def _delete(gone: Gone) -> None:
    for rows in _old_conversations():
        while gone.conversations < MAX_CONVERSATIONS and (number := _delete_batch(rows)):
            gone.conversations += number
    for answers in _old_answers():
        while gone.answers < MAX_RECORDS:
            batch = list(answers.order_by("pk").values_list("pk", flat=True)[:BATCH_RECORDS])
            if not batch:
                break
            gone.answers += Generation.objects.filter(pk__in=batch).delete()[0]
    gone.links = _old_links().delete()[0]
    gone.sessions = _delete_ended_sessions()
    if days := effective.site_rules().audit_days:
        gone.audit_entries = audit.purge(days)


def _delete_batch(rows: QuerySet[Conversation]) -> int:
    """Conversations somebody is just writing in are passed over: they are locked, and then no longer old."""
    with transaction.atomic():
        locked = rows.select_for_update(of=("self",), no_key=True, skip_locked=True).order_by("updated_at")
        batch = list(locked.only("pk", "owner_id")[:BATCH_ROWS])
        for conversation in batch:
            notify.tell(conversation.owner_id, conversation.pk, notify.Change.GONE)
        Conversation.objects.filter(pk__in=[conversation.pk for conversation in batch]).delete()
        owners = {conversation.owner_id for conversation in batch}
        Tag.objects.filter(owner__in=owners, conversations=None).delete()
    return len(batch)


def _old_conversations() -> Iterator[QuerySet[Conversation]]:
    """One query for each different rule, whoever many people it is for."""
    active = Generation.objects.filter(status=Generation.Status.ACTIVE)
    answering, naming = Q(message__conversation=OuterRef("pk")), Q(conversation=OuterRef("pk"))
    for days, owners in effective.by_retention("owner"):
        if days is not None:
            rows = Conversation.objects.filter(owners, updated_at__lt=_ago(days))
            yield rows.filter(~Exists(active.filter(answering)), ~Exists(active.filter(naming)))


def _old_answers() -> Iterator[QuerySet[Generation]]:
    for days, users in effective.by_retention("user"):
        kept = RECORD_DAYS if days is None else min(days, RECORD_DAYS)
        yield Generation.objects.filter(users, message=None, ended_at__lt=_ago(kept))


def _old_links() -> QuerySet[Share]:
    before = _ago(LINK_DAYS)
    return Share.objects.filter(Q(expires_at__lt=before) | Q(revoked_at__lt=before))


def _delete_ended_sessions() -> int:
    """Sessions, and what the list of them still says of such as are no more."""
    ended = Session.objects.filter(expire_date__lt=timezone.now()).count()
    engine: Any = import_module(settings.SESSION_ENGINE)
    engine.SessionStore.clear_expired()
    standing = Session.objects.filter(session_key=OuterRef("session_key"))
    unseen = timezone.now() - datetime.timedelta(hours=UNSEEN_HOURS)
    UserSession.objects.filter(~Exists(standing), last_seen_at__lt=unseen).delete()
    return ended


def _ago(days: int) -> datetime.datetime:
    return timezone.now() - datetime.timedelta(days=days)
