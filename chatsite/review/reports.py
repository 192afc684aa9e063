"""What owners reported, and what reviewers made of it: handled, with a note for the owner, or open again.

Sync; called by the views. No text of anybody is read here: that takes an opening, see `actions`.
"""

from __future__ import annotations

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404

from chatsite.accounts.models import User
from chatsite.chat.models import Feedback
from chatsite.chat.text import clean_typed
from chatsite.review import actions
from chatsite.review.models import ReportOutcome

log = structlog.get_logger(__name__)


class AlreadyHandled(Exception):
    """Somebody was quicker; the sentence says who and when."""


def reports_for(actor: object) -> QuerySet[Feedback]:
    """The reports that `actor` may look at, newest first, each with its owner and its outcome; no comment is loaded."""
    if not actions.may_review(actor):
        return Feedback.objects.none()
    rows = actions.standing_reports().select_related("message__conversation__owner", "outcome__handled_by")
    return rows.only(
        "rating",
        "reason",
        "is_reported",
        "created_at",
        "message__conversation__owner__username",
        "outcome__note",
        "outcome__at",
        "outcome__handled_by__username",
    )


def report_for(actor: object, report_id: int) -> Feedback:
    """Raises Http404: no such report, it was taken back, or `actor` may not review."""
    found = reports_for(actor).filter(pk=report_id).first()
    if found is None:
        raise Http404
    return found


def handle(actor: User, report_id: int, note: str = "") -> ReportOutcome:
    """Keep that the report is dealt with. Its owner sees the note (at most NOTE_CHARS), the time and who did it.

    Raises:
        Http404: as `report_for`.
        AlreadyHandled: it was before.
    """
    report_for(actor, report_id)
    with transaction.atomic():
        report = _locked(report_id)
        outcome, is_new = ReportOutcome.objects.get_or_create(
            feedback=report, defaults={"handled_by": actor, "note": clean_typed(note).strip()}
        )
    if not is_new:
        name = outcome.handled_by.get_username() if outcome.handled_by else "somebody"
        raise AlreadyHandled(f"Handled already, by {name} on {outcome.at:%Y-%m-%d %H:%M}. Nothing was changed.")
    log.info("report handled", actor_id=str(actor.pk), report_id=report_id)
    return outcome


def reopen(actor: User, report_id: int) -> None:
    """Take back that the report is dealt with, its note included. Not handled: nothing happens. Raises Http404."""
    report_for(actor, report_id)
    ReportOutcome.objects.filter(feedback=report_id).delete()
    log.info("report opened again", actor_id=str(actor.pk), report_id=report_id)


def _locked(report_id: int) -> Feedback:
    """The report, its row held until commit: taking it back waits, and takes the outcome along."""
    found = actions.standing_reports().select_for_update().filter(pk=report_id).first()
    if found is None:
        raise Http404
    return found
