"""Shutting an account and opening it again. Nothing of it is deleted; what it did goes on for no one.

Called by the admin, inside its transaction. The audit log hears of it by itself.
"""

from __future__ import annotations

from django.db import transaction

from chatsite.accounts import sessions
from chatsite.accounts.models import User
from chatsite.chat.actions import send
from chatsite.chat.models import Generation


def deactivate(user: User) -> None:
    """Let the person in no more: their sessions end, their answers that wait or are being written are stopped.

    Keys, shared links and queued messages stand still as long, for each of them asks whether its owner is active.
    """
    with transaction.atomic():
        user.is_active = False
        user.save(update_fields=["is_active"])
        end_activity(user)


def activate(user: User) -> None:
    user.is_active = True
    user.save(update_fields=["is_active"])


def end_activity(user: User) -> None:
    """What `deactivate` does beside the row, for one who has been made inactive already."""
    sessions.end_all([user])
    for generation in Generation.objects.filter(user=user, status=Generation.Status.ACTIVE):
        send.stop(user, generation)
