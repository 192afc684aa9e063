"""Gives answers that wait for a model which nobody serves any more to one that is served.

A message is sent to a model that was there; its last worker may be gone before it was claimed. Owns how long a model
has to be gone, and what then becomes of an answer. An answer of the chat begins anew under another model; one of
`/v1`, whose caller named the model, and one of a temporary chat, whose request Redis alone has, end with an error that
says so. Called by the sweeper in `tasks`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import structlog

from chatsite.chat import inference
from chatsite.chat.generation import model_choice
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Generation
from inference.errors import InvalidRequest
from inference.messages.cards import WorkerCard
from inference.messages.generation import ErrorFacts, Finish, FinishReason
from inference.messages.serialization import encode

log = structlog.get_logger(__name__)

GONE_SECONDS = 15.0  # more than a worker that is started again takes to say so


class GoneModels:
    """What the sweeps of this process have seen of models that are asked for and that nobody has."""

    def __init__(self, gone_seconds: float = GONE_SECONDS) -> None:
        self._gone_seconds = gone_seconds
        self._since: dict[str, float] = {}
        self._cards: Sequence[WorkerCard] = ()

    def look(self) -> None:
        """At the beginning of a sweep."""
        self._cards = inference.live_workers() or ()
        self._since = {
            name: since for name, since in self._since.items() if not model_choice.is_held(name, self._cards)
        }

    def take(self, row: Generation) -> bool:
        """Move or end `row`, which waits, if its model has been gone for long while another is served. Whether it did.

        Raises:
            StoreUnavailable: nothing is lost, sweep again.
        """
        other = model_choice.standing_in(self._cards)
        if other is None or any(card.model.name == row.model for card in self._cards):
            return False  # who is leaving still answers those that wait
        now = time.monotonic()
        if now - self._since.setdefault(row.model, now) < self._gone_seconds:
            return False
        if row.source in (Generation.Source.API, Generation.Source.TEMPORARY):  # the latter is written down nowhere
            message = f"No worker serves {row.model} any more."
            error = ErrorFacts(code="model_not_served", message=message, retryable=True)
            return inference.inference_client().end(row.pk, Finish(reason=FinishReason.ERROR, error=error))
        return _move(row, other.model)


def _move(row: Generation, model: str) -> bool:
    """Redis forgets first: whatever is interrupted, the next sweep finds an answer unknown to Redis, and enters it."""
    try:
        request = generation_request.frozen_request_of(row)
    except InvalidRequest:
        return False  # the sweeper ends it once Redis does not know it
    request = msgspec.structs.replace(request, model=model, prompt_tokens=0)
    client = inference.inference_client()
    client.forget(row.pk)
    waiting = Generation.objects.filter(pk=row.pk, status=Generation.Status.ACTIVE, model=row.model)
    if not waiting.update(model=model, request=encode(request).decode()):
        return False
    client.submit(request)
    log.warning("moved to another model", generation_id=str(row.pk), model=row.model, to=model)
    return True
