"""What a reader thinks of an answer: given, changed, taken back; with or without a report of it to reviewers.

One opinion per answer. Who may read what was reported, and what becomes of it, is a matter of `review`. Synchronous;
called by the views. `counted` is what this process was told, for the metrics page.
"""

from __future__ import annotations

import functools

from django.db import transaction
from prometheus_client import CollectorRegistry, Counter

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.models import REASON_CHARS, Feedback, Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.text import clean_typed
from chatsite.rules import effective
from chatsite.rules.models import SiteRules

counted = CollectorRegistry()
GIVEN = Counter(
    "smolfleet_feedback", "Opinions given of answers, changed ones again", ["rating", "model"], registry=counted
)


def give(
    user: User, message: Message, rating: int, *, reason: str = "", comment: str = "", is_reported: bool = False
) -> Feedback:
    """Keep `rating` of an answer, in place of what was thought before.

    `is_reported` shows reviewers the answer and what led to it. A report that is taken back takes along what reviewers
    made of it; a later one is new to them.

    Raises:
        NotAnAnswer: it is a question.
        AnswerRunning: it is still being written.
        MessageTooLong: the comment is.
        NotReportable: a report of an answer that is good.
        ReportsClosed: a new report while nobody may read it.
        Http404: the message is not this user's, or no longer there.
    """
    answer, model = _answer(user, message)
    comment = clean_typed(comment).strip()
    if len(comment) > REASON_CHARS:
        raise errors.MessageTooLong(num_chars=len(comment), max_chars=REASON_CHARS)
    if is_reported and rating != Feedback.Rating.BAD:
        raise errors.NotReportable
    values = {"rating": Feedback.Rating(rating), "reason": reason, "comment": comment, "is_reported": is_reported}
    with transaction.atomic():
        before = _locked(answer)
        was_reported = before is not None and before.is_reported
        if is_reported and not was_reported and _is_review_off():
            raise errors.ReportsClosed
        if before is not None and was_reported != is_reported:
            before.delete()
        row, _is_new = Feedback.objects.update_or_create(message=answer, defaults=values)
        name = Feedback.Rating(rating).name.lower()
        transaction.on_commit(functools.partial(GIVEN.labels(name, model).inc), robust=True)
    return row


def withdraw(user: User, message: Message) -> None:
    """Take the opinion back, and its report. None there: nothing happens. Raises as `give`."""
    answer, _model = _answer(user, message)
    with transaction.atomic():
        if before := _locked(answer):
            before.delete()


def _locked(answer: Message) -> Feedback | None:
    """The opinion as it is now, its row held until commit: a reviewer who handles the report comes before or after."""
    return Feedback.objects.select_for_update().filter(message=answer).first()


def _is_review_off() -> bool:
    return effective.site_rules().review_policy == SiteRules.Review.OFF


def _answer(user: User, message: Message) -> tuple[Message, str]:
    answer = access.message_of(user, message.pk)
    generation = Generation.objects.filter(message=answer).first()
    if answer.role != Message.Role.ASSISTANT:
        raise errors.NotAnAnswer
    if generation is not None and generation.is_active:
        raise errors.AnswerRunning
    return answer, generation.model if generation else ""
