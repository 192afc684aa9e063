"""What a reader thinks of an answer: given, changed, taken back. One opinion per answer.

Synchronous; called by the views. `counted` is what this process was told, for the metrics page.
"""

from __future__ import annotations

import functools

from django.db import transaction
from prometheus_client import CollectorRegistry, Counter

from chatsite.accounts.models import User
from chatsite.chat import access, errors
from chatsite.chat.models import REASON_CHARS, Feedback, Generation, Message
from chatsite.chat.text import clean_typed

counted = CollectorRegistry()
GIVEN = Counter(
    "smolfleet_feedback", "Opinions given of answers, changed ones again", ["rating", "model"], registry=counted
)


def give(user: User, message: Message, rating: int, *, reason: str = "", comment: str = "") -> Feedback:
    """Keep `rating` of an answer, in place of what was thought before.

    Raises:
        NotAnAnswer: it is a question, or is still being written.
        MessageTooLong: the comment is.
        Http404: the message is not this user's, or no longer there.
    """
    answer, model = _answer(user, message)
    comment = clean_typed(comment).strip()
    if len(comment) > REASON_CHARS:
        raise errors.MessageTooLong(num_chars=len(comment), max_chars=REASON_CHARS)
    values = {"rating": Feedback.Rating(rating), "reason": reason, "comment": comment}
    with transaction.atomic():
        row, _is_new = Feedback.objects.update_or_create(message=answer, defaults=values)
        name = Feedback.Rating(rating).name.lower()
        transaction.on_commit(functools.partial(GIVEN.labels(name, model).inc), robust=True)
    return row


def withdraw(user: User, message: Message) -> None:
    """Take the opinion back. None there: nothing happens. Raises as `give`."""
    answer, _model = _answer(user, message)
    Feedback.objects.filter(message=answer).delete()


def _answer(user: User, message: Message) -> tuple[Message, str]:
    answer = access.message_of(user, message.pk)
    generation = Generation.objects.filter(message=answer).first()
    if answer.role != Message.Role.ASSISTANT:
        raise errors.NotAnAnswer
    if generation is not None and generation.is_active:
        raise errors.AnswerRunning
    return answer, generation.model if generation else ""
