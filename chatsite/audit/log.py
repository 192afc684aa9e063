"""Writing the audit log: one verb. In the caller's transaction, so that a deed and its entry stand or fall together.

And the two ways in which entries change or go, as the trigger lets them: an erasure, and old age. `counted` is what
this process saw of sign-ins, for the metrics page.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from prometheus_client import CollectorRegistry, Counter

from chatsite.accounts.models import User
from chatsite.audit.models import MIN_DAYS, NAME_CHARS, TARGET_CHARS, Action, AuditEntry
from chatsite.audit.origin import Origin, origin

counted = CollectorRegistry()
FAILED_SIGN_INS = Counter(
    "smolfleet_failed_sign_ins", "Sign-ins that this process refused, by what was wrong", ["step"], registry=counted
)
for _step in ("password", "second factor"):
    FAILED_SIGN_INS.labels(_step)  # 0 from the start: a rate needs something to rise from


def record(
    action: Action,
    *,
    actor: User | None = None,
    subject: User | None = None,
    subject_name: str = "",
    target: str = "",
    detail: Mapping[str, Any] | None = None,
    ip: str | None = None,
) -> AuditEntry:
    """Note that `actor` did `action`, to `subject` where it concerns another person than the actor.

    Left out, `actor` and `ip` are those of the request that is being answered; a `subject` who is the actor is left
    away. `subject_name` is for who has no account. `detail` holds JSON values: what changed, never a secret and never
    the text of a conversation; see `AuditEntry`.

    Raises:
        DatabaseError: it could not be written; then the deed must not happen either.
    """
    asked = origin()
    actor = actor or asked.user
    if actor is not None and actor == subject:
        subject, subject_name = None, ""
    return AuditEntry.objects.create(
        action=action,
        actor=actor,
        actor_name=actor.get_username() if actor else _name_of(asked),
        subject=subject,
        subject_name=subject.get_username() if subject else subject_name[:NAME_CHARS],
        target=target[:TARGET_CHARS],
        detail=dict(detail or {}),
        ip=ip or asked.ip,
    )


def _name_of(asked: Origin) -> str:
    """Of a command, by two words: no account can have that name."""
    return f"command {asked.command}"[:NAME_CHARS] if asked.command else ""


def record_about(
    person: User, action: Action, *, target: str = "", detail: Mapping[str, Any] | None = None
) -> AuditEntry:
    """Note that somebody did `action` to the account of `person`: whoever is signed in; where nobody is, on a page,
    they themself, by a sign-up or a link that came by mail; a command by its name; nobody known, in a task. Raises as
    `record`.
    """
    asked = origin()
    actor = asked.user or (person if asked.is_page else None)
    return record(action, actor=actor, subject=person, target=target, detail=detail)


def pseudonymise(user: User) -> str:
    """Take the person out of all entries, because their account is erased. Returns what stands in place of the name.

    It is the same in all of them and says nothing of who it was. The trigger takes along what else tells of the person:
    the address where they were the actor or nobody was known, the personal part of `detail`, their name in the rest of
    it. Called before any account is deleted, in that transaction; see `receivers`.
    """
    pseudonym: str = vars(user).setdefault("_pseudonym", f"deleted user {secrets.token_hex(4)}")
    tried = Q(subject=None, action=Action.SIGN_IN_FAILED, subject_name__iexact=user.get_username())
    with transaction.atomic():
        AuditEntry.objects.filter(actor=user).update(actor=None, actor_name=pseudonym)
        AuditEntry.objects.filter(Q(subject=user) | tried).update(subject=None, subject_name=pseudonym)
    return pseudonym


def purge(days: int) -> int:
    """Delete entries older than `days`, by Postgres's clock. Returns how many went.

    Raises:
        ValueError: less than MIN_DAYS; no rule lets them go sooner.
    """
    if days < MIN_DAYS:
        raise ValueError(f"audit entries stay for {MIN_DAYS} days at least, not {days}")
    number, _ = AuditEntry.objects.filter(at__lt=Now() - datetime.timedelta(days=days)).delete()
    return number
