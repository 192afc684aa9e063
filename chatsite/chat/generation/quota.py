"""What answers cost: reserved from quotas before they are stored, entered in the ledger when they end.

Owns the reservation of a request (its prompt and its cap), how small a cap may be made where few tokens are left, and
the cost of an answer whose row is deleted while it is being written. Called by whoever stores generations, by
`record` and, at deletions, by the app's signals. `usage` keeps the books and knows no generations.
"""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
from django.db.models import Model, QuerySet
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat import errors, inference
from chatsite.chat.generation import request as generation_request
from chatsite.chat.generation import worker_report
from chatsite.chat.models import Generation
from chatsite.usage import ledger, quotas
from inference.errors import EventsExpired, InvalidRequest, StoreUnavailable
from inference.messages.generation import GenerationRequest, Usage

log = structlog.get_logger(__name__)

MIN_ANSWER_TOKENS = 64  # an answer is not begun for less, unless less was asked for


def reserve(user: User, request: GenerationRequest, *, is_cap_asked: bool) -> tuple[GenerationRequest, int]:
    """The request, and the tokens to reserve on its generation's row; in the transaction that has locked the user's.

    Where less is left than the site's cap, the answer's cap becomes what is left; a cap that somebody asked for
    (`is_cap_asked`) stays as it is. A prompt that nobody could count counts nothing until the answer ends.

    Raises:
        QuotaExceeded: even that does not fit.
    """
    prompt = request.prompt_tokens
    cap = request.sampling.max_tokens or 0
    if request.opening is not None and request.opening.is_whole:
        cap = 0  # recited: no model writes it
    least = cap if is_cap_asked else min(cap, MIN_ANSWER_TOKENS)
    try:
        granted = quotas.reserve(user, wanted=prompt + cap, least=prompt + least)
    except quotas.QuotaFull as full:
        raise errors.QuotaExceeded(full) from full
    if granted < prompt + cap:
        sampling = msgspec.structs.replace(request.sampling, max_tokens=granted - prompt)
        request = msgspec.structs.replace(request, sampling=sampling)
    return request, granted


def enter(generation: Generation) -> None:
    """Put the cost of one that has just ended in the ledger, in the transaction that ended it."""
    assert generation.ended_at is not None, "it has ended"
    ledger.add(
        ledger.Entry(
            user_id=generation.user_id,
            ended_at=generation.ended_at,
            model=generation.model,
            source=generation.source,
            api_key_id=generation.api_key_id,
            is_failed=generation.status == Generation.Status.FAILED,
            is_stopped=generation.status == Generation.Status.STOPPED,
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
            completion_tokens=generation.completion_tokens,
            decode_seconds=generation.decode_seconds,
        )
    )


def hold_doomed(instance: Generation, **kwargs: Any) -> None:
    """Before a row is deleted: from here on nobody else can end it, and how it stands now is known for certain.

    All rows of a deletion are held before the first is deleted and before the ledger is written, as `record` does
    it: so the two never wait for each other.
    """
    if instance.is_active:
        rows = Generation.objects.select_for_update().filter(pk=instance.pk)
        instance.status = rows.values_list("status", flat=True).first() or instance.status


def enter_deleted(instance: Generation, origin: object = None, **kwargs: Any) -> None:
    """After a row was deleted that had not ended: what it had cost by then, else deleting would be a way to pay
    nothing. With the whole account nothing is left to be entered."""
    if not instance.is_active or _is_of_account(origin):
        return
    usage = _usage_so_far(instance)
    ledger.add(
        ledger.Entry(
            user_id=instance.user_id,
            ended_at=timezone.now(),
            model=instance.model,
            source=instance.source,
            api_key_id=instance.api_key_id,
            is_stopped=True,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )
    )


def _usage_so_far(generation: Generation) -> Usage:
    """From the log; nothing before a worker has begun. While Redis is away, all that was reserved."""
    try:
        prompt_tokens = generation_request.frozen_request_of(generation).prompt_tokens
    except InvalidRequest:
        prompt_tokens = 0
    most = max(0, generation.reserved_tokens - prompt_tokens)  # of the answer; its log also has what it was begun with
    try:
        found = inference.log_of(generation.pk)
    except EventsExpired:
        return Usage()  # no worker has it, and none can get it any more
    except StoreUnavailable:
        log.warning("cost of a deleted answer not known: its reservation is taken", generation_id=str(generation.pk))
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=most)
    if found.finish is not None:
        return worker_report.usage_of(generation, found, found.finish.usage)
    if not found.events:
        return Usage()
    return Usage(
        prompt_tokens=prompt_tokens,
        cached_tokens=min(prompt_tokens, max(event.num_cached for event in found.events)),
        completion_tokens=min(most, sum(len(event.tokens) for event in found.events)),
    )


def _is_of_account(origin: object) -> bool:
    """Whether a deletion began with a person: `origin` is a row or the rows that were to be deleted."""
    model = origin.model if isinstance(origin, QuerySet) else type(origin) if isinstance(origin, Model) else None
    return model is not None and issubclass(model, User)
