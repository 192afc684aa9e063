"""The end of an account: everything that is of a person goes, from Postgres and from Redis; records of what happened
stay, under a pseudonym. One way for the person, for admins and for the command.

The models themselves say what goes, so that a future one cannot be forgotten: whatever refers to a person either goes
with them (CASCADE), or is emptied and has a way of its own with the name (`audit.log`, `review.forgetting`). Waits for
no worker: one that writes for them hears that it is to stop, and its text goes nowhere. Synchronous; called by the
views, the admin and `manage.py eraseuser`.
"""

from __future__ import annotations

import functools
from uuid import UUID

import structlog
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import IntegrityError, OperationalError, connection, models, transaction
from django.db.models.functions import Cast
from django.utils.translation import gettext as _

from chatsite.accounts import sessions
from chatsite.accounts.models import User
from chatsite.audit import log as audit
from chatsite.audit.origin import asked_by, origin
from chatsite.chat import inference
from chatsite.chat.models import Conversation, Generation
from chatsite.review import forgetting
from chatsite.usage.models import UsageDay

log = structlog.get_logger(__name__)

ATTEMPTS = 3  # a deadlock ends one of two transactions, and this one can begin anew
BATCH_ROWS = 200  # of one statement, with what hangs on them: so much is in memory at a time
# Of which one person may have very many.
MANY: tuple[tuple[type[models.Model], str], ...] = ((Conversation, "owner"), (Generation, "user"), (UsageDay, "user"))


class ErasureRefused(Exception):
    """Nothing was deleted; the sentence says why."""


def refusal(user: User) -> ErasureRefused | None:
    """Why the account cannot go just now; None when it can."""
    others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
    if user.is_superuser and user.is_active and not others.exists():
        return ErasureRefused(
            _("“%(name)s” is the last administrator of this site who can sign in. Make another person one first.")
            % {"name": user.get_username()}
        )
    return None


def erase(user: User, actor: User | None) -> None:
    """Delete the account of `user` with everything that hangs on it, because `actor` wants it; None: the operator.

    Their sessions end at once, and open streams with them. Redis follows the commit; what cannot be reached there then,
    expires.

    Raises:
        ErasureRefused, DatabaseError: nothing was deleted.
    """
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            with transaction.atomic():
                _erase(user.pk, actor)
                connection.check_constraints()  # a row that came meanwhile is found here, not at somebody's commit
                transaction.on_commit(functools.partial(inference.forget_user, user.pk), robust=True)
            break
        except (OperationalError, IntegrityError) as error:
            if not attempts_left:
                raise
            log.warning("erasure begins anew", user_id=str(user.pk), reason=type(error).__name__)
    log.info("account erased", user_id=str(user.pk), actor_id=str(actor.pk) if actor else None)


def models_of_people() -> list[tuple[type[models.Model], str]]:
    """Every model whose rows go with a person's, and its column that names the person."""
    relations = User._meta.get_fields(include_hidden=True)
    found = [
        (relation.related_model, relation.field.name)
        for relation in relations
        if isinstance(relation, models.ManyToOneRel) and relation.on_delete is models.CASCADE
    ]
    return [(model, column) for model, column in found if not model._meta.auto_created]


def _erase(user_id: UUID, actor: User | None) -> None:
    user = _locked(user_id)
    if user is None:
        return  # somebody else erased it just now
    if why := refusal(user):
        raise why
    with asked_by(actor, origin().ip):
        sessions.end_all([user])
        _forget_in_admin_log(user)
        for model, column in MANY:
            rows = model._base_manager.filter(**{column: user}).order_by("pk")
            while batch := list(rows.values_list("pk", flat=True)[:BATCH_ROWS]):
                model._base_manager.filter(pk__in=batch).delete()  # Redis forgets each answer: see chat/apps.py
        forgetting.forget(user, audit.pseudonymise(user))
        user.delete()  # and all the rest; the audit log hears of it by itself, and gives this entry the pseudonym too


def _locked(user_id: UUID) -> User | None:
    """The row, with nothing going on beside: no send, no recording of an answer, no second superuser who leaves."""
    people = User.objects.order_by("pk")
    user = people.filter(pk=user_id).first()
    if user is None:
        return None
    if user.is_superuser:
        list(people.select_for_update(no_key=True).filter(is_superuser=True).values_list("pk"))
    people.select_for_update(no_key=True).filter(pk=user_id).first()  # as sends do; recorders may still finish ...
    active = Generation.objects.filter(user=user, status=Generation.Status.ACTIVE).order_by("pk")
    list(active.select_for_update().values_list("pk"))
    return people.select_for_update().filter(pk=user_id).first()  # ... and from here on no row can refer to it


def _forget_in_admin_log(user: User) -> None:
    """What Django's admin noted about the person and what is theirs: it quotes names. What they did goes as a row."""
    noted = set(LogEntry.objects.order_by().values_list("content_type", flat=True).distinct())
    own: tuple[type[models.Model], str] = (User, "pk")
    for model, column in (own, *models_of_people()):
        kind = ContentType.objects.get_for_model(model)
        if kind.pk in noted:
            rows = model._base_manager.filter(**{column: user.pk}).annotate(key=Cast("pk", models.TextField()))
            LogEntry.objects.filter(content_type=kind, object_id__in=rows.values("key")).delete()
