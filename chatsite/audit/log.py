"""Writing the audit log: one verb. In the caller's transaction, so that a deed and its entry stand or fall together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chatsite.accounts.models import User
from chatsite.audit.models import TARGET_CHARS, Action, AuditEntry
from chatsite.audit.origin import origin


def record(
    action: Action,
    *,
    actor: User | None = None,
    subject: User | None = None,
    target: str = "",
    detail: Mapping[str, Any] | None = None,
    ip: str | None = None,
) -> AuditEntry:
    """Note that `actor` did `action`, to `subject` where it concerns another person than the actor.

    Left out, `actor` and `ip` are those of the request that is being answered. `detail` holds JSON values: what
    changed, never a secret and never the text of a conversation.

    Raises:
        DatabaseError: it could not be written; then the deed must not happen either.
    """
    asked = origin()
    actor = actor or asked.user
    return AuditEntry.objects.create(
        action=action,
        actor=actor,
        actor_name=actor.get_username() if actor else "",
        subject=subject,
        subject_name=subject.get_username() if subject else "",
        target=target[:TARGET_CHARS],
        detail=dict(detail or {}),
        ip=ip or asked.ip,
    )
