"""Whoever may see less from now on is told of, so that what is open of theirs closes at once: sessions that end, a new
password, a closed or deleted account, a key that is revoked, a second factor that is asked for or taken away.

Only whom it may concern is told, once it is committed: each stream of theirs, in whichever web process, then asks
Postgres itself whether it may go on (`until_revoked`). So a session that stays loses nothing, and what is published
carries nothing but an id. A word that is lost costs the time until the stream asks anyway.

The telling half hears of rows, whatever page, command or code changes them; `QuerySet.update` alone is not heard.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from uuid import UUID

import structlog
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import Group
from django.contrib.sessions.models import Session
from django.db import DatabaseError, transaction
from django.db.models import Model
from django.db.models.signals import ModelSignal, m2m_changed, post_delete, post_save
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat import notify
from chatsite.chat.streams.hub import hub

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 1.0  # after Postgres could not be asked
LATE_SECONDS = 0.1  # so much after an end it has surely come, by whichever clock
OF_NO_ONE = frozenset({"last_login"})  # columns of a person that open and close nothing

# -- telling


def connect() -> None:
    """From now on changes are told. Called once, when the apps are ready."""
    heard: list[tuple[ModelSignal, str, Callable[..., None]]] = [
        (post_delete, "sessions.Session", _session_gone),
        (post_save, "accounts.User", _person_saved),
        (post_delete, "accounts.User", _person_gone),
        (post_save, "accounts.ApiKey", _thing_of_person),
        (post_delete, "accounts.ApiKey", _thing_of_person),
        (post_delete, "mfa.Authenticator", _thing_of_person),
    ]
    for rules in ("rules.SiteRules", "rules.GroupRules"):
        heard += [(post_save, rules, _rules), (post_delete, rules, _rules)]
    for signal, sender, receiver in heard:
        signal.connect(receiver, sender=sender, dispatch_uid=f"revoking {sender}")  # each signal has uids of its own
    for through in (User.groups.through, User.user_permissions.through):
        m2m_changed.connect(_rights_of_people, sender=through, dispatch_uid=f"revoking {through.__name__}")
    m2m_changed.connect(_rules, sender=Group.permissions.through, dispatch_uid="revoking rights of groups")


def tell(user_id: UUID | None) -> None:
    """Let open streams of that person look again, of everybody for None; once the transaction is committed."""
    transaction.on_commit(functools.partial(notify.tell_streams, user_id), robust=True)


def _session_gone(instance: Session, **_: Any) -> None:
    if instance.expire_date > timezone.now():  # the others are swept away by the thousand, long after their end
        user_id = instance.get_decoded().get(SESSION_KEY)
        if user_id is not None:
            tell(UUID(user_id))


def _person_saved(instance: User, created: bool, update_fields: Collection[str] | None, **_: Any) -> None:
    if not created and (update_fields is None or not OF_NO_ONE.issuperset(update_fields)):
        tell(instance.pk)


def _person_gone(instance: User, **_: Any) -> None:
    tell(instance.pk)


def _thing_of_person(instance: Any, created: bool = False, **_: Any) -> None:
    if not created:
        tell(instance.user_id)


def _rules(action: str = "", **_: Any) -> None:
    if not action.startswith("pre_"):
        tell(None)


def _rights_of_people(instance: Model, action: str, reverse: bool, pk_set: Collection[UUID] | None, **_: Any) -> None:
    """A group may ask a second factor of its members, the site of whoever has a role."""
    if action.startswith("pre_"):
        return
    people = pk_set if reverse else [instance.pk]
    for user_id in people if people is not None else [None]:
        tell(user_id)


# -- hearing


async def until_revoked(
    user_id: UUID, may_go_on: Callable[[], Awaitable[bool]], *, every: float, ends_in: float | None = None
) -> None:
    """Return once `may_go_on` says no. It is asked when something of that person's changed, `every` so many seconds,
    and after `ends_in`. While Postgres is away nobody is sent off.

    Begin before what is guarded: whatever happens from the subscription on is heard, and the first look is at it.
    """
    clock = asyncio.get_running_loop().time
    ends_at = None if ends_in is None else clock() + ends_in + LATE_SECONDS
    patience = every
    with hub().standing(user_id) as mailbox:
        while True:
            await mailbox.wait(patience if ends_at is None else min(patience, max(0.0, ends_at - clock())))
            mailbox.begin_anew()
            if ends_at is not None and clock() >= ends_at:
                ends_at = None
            try:
                if not await may_go_on():
                    return
                patience = every
            except DatabaseError as error:
                log.warning("cannot tell whether a stream may go on", reason=type(error).__name__)
                patience = min(every, AGAIN_SECONDS)
