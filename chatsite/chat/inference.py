"""The way from the site to Redis and the workers: this process's client, and what to do while Redis is away.

A Redis that does not answer costs one call its time; for `AWAY_SECONDS` after that nobody waits for it again. What was
accepted stands in Postgres, and the sweep makes up for what could not be told. Any thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.utils import timezone

from chatsite.chat.models import Generation
from inference import errors
from inference.client import InferenceClient
from inference.coordination.log_view import Log
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.generation import GenerationRequest

log = structlog.get_logger(__name__)

T = TypeVar("T")

AWAY_SECONDS = 2.0  # after Redis could not be reached a send leaves it alone for this long


class _Outage:
    """Keeps a Redis that does not answer from costing each send several timeouts, one after the other."""

    def __init__(self) -> None:
        self._client: InferenceClient | None = None
        self._until = float("-inf")

    def unless_away(self, call: Callable[[InferenceClient], T]) -> T:
        """The result of `call`. Raises StoreUnavailable, also without calling while Redis was just found away."""
        client = inference_client()
        if client is self._client and time.monotonic() < self._until:
            raise errors.StoreUnavailable("Redis could not be reached a moment ago.")
        try:
            return call(client)
        except errors.StoreUnavailable:
            self._client, self._until = client, time.monotonic() + AWAY_SECONDS
            raise


unless_away = _Outage().unless_away  # of this process


@functools.cache
def inference_client() -> InferenceClient:
    """This process's client; made at first use, safe for threads."""
    return InferenceClient(settings.INFERENCE)


def served_models() -> list[ModelCard] | None:
    """What live workers serve; None while Redis is away and nobody can tell."""
    try:
        return unless_away(lambda client: client.models())
    except errors.StoreUnavailable:
        return None


def live_workers() -> list[WorkerCard] | None:
    """Cards of the workers that live, by name; None while Redis is away and nobody can tell."""
    try:
        return unless_away(lambda client: client.workers())
    except errors.StoreUnavailable:
        return None


def submit(request: GenerationRequest) -> None:
    """Hand a committed request on. Redis being away is no failure: the row stands, and the sweeper enters it later."""
    try:
        unless_away(lambda client: client.submit(request))
    except errors.StoreUnavailable:
        log.warning("submit left to the sweeper", generation_id=str(request.id))


def log_of(generation_id: UUID) -> Log:
    """What has been written so far. Raises EventsExpired, StoreUnavailable, the latter at once where Redis was just
    found away."""
    return unless_away(lambda client: client.read(generation_id))


def forget(generation_id: UUID) -> None:
    """Take everything of a deleted generation out of Redis; a worker that still writes it is refused and ends.

    What cannot be reached now ends by itself: its record finds no row and forgets it.
    """
    try:
        unless_away(lambda client: client.forget(generation_id))
    except errors.StoreUnavailable:
        log.warning("log of a deleted generation left to expire", generation_id=str(generation_id))


def may_be_kept(generation: Generation) -> bool:
    """Whether Redis can still have something of it. Long after its end there is nothing to take out."""
    if generation.ended_at is None:
        return True
    age = (timezone.now() - generation.ended_at).total_seconds()
    return age < 2 * inference_client().kept_seconds  # twice: a submit may have come late


def forget_user(user_id: UUID) -> None:
    """Take out of Redis whatever else names a person whose account is gone: counters, places, cached facts."""
    try:
        unless_away(lambda client: client.forget_user(str(user_id)))
    except errors.StoreUnavailable:
        log.warning("counters of a deleted account left to expire", user_id=str(user_id))
