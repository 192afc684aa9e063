"""Which model answers: the one a conversation or the site names, or another while nobody serves that one.

Workers come, go and change their models (`manage.py worker swap`). A conversation keeps the name it was given; its
next message goes to whoever can answer it. Reads workers' cards, writes nothing. Called by `answer`, `page` and
`reassign`, on any thread.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import gettext as _

from chatsite.chat import inference
from chatsite.chat.errors import ModelUnknown
from chatsite.chat.models import Generation
from chatsite.chat.text import clean
from inference.messages.cards import WorkerCard

LATELY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Choice:
    """The catalog name of what answers. `instead_of` is the one asked for, where that is another."""

    model: str
    title: str = ""
    instead_of: str = ""

    @property
    def sentence(self) -> str:
        """What a reader should know of it; empty when there is nothing."""
        if not self.instead_of:
            return ""
        names = {"wanted": self.instead_of, "other": self.title or self.model}
        return _("%(wanted)s is not served now; %(other)s answers.") % names


def choose(named: str) -> Choice:
    """What answers where `named` is asked for; "" follows the site's default.

    Nobody waits for a model that is gone or leaving while another is there or coming. Where nobody lives, or Redis is
    away, the name stands and the message waits; a site that names none waits for what answered last.

    Raises:
        ModelUnknown: nothing names one.
    """
    name = named or settings.SMOLFLEET.default_model
    cards = inference.live_workers() or []
    if name and (not cards or is_held(name, cards)):
        return Choice(name)
    other = standing_in(cards) or _coming(cards)
    if other is not None:
        return Choice(other.model, other.title, instead_of=name if name != other.model else "")
    serving = [card.model.name for card in cards if card.state != "loading"]
    last = Generation.objects.order_by("-pk").values_list("model", flat=True)
    if found := name or min(serving, default="") or last.first():
        return Choice(found)
    raise ModelUnknown("")


def is_known(model: str) -> bool:
    """Whether a conversation may name it: somebody serves it, is about to, or did until lately."""
    if model == settings.SMOLFLEET.default_model:
        return True
    if model != clean(model):  # no name that any database or worker could hold
        return False
    cards = inference.live_workers()
    if cards is None:  # nobody can tell: the name is kept, and waits
        return True
    if any(model in (card.model.name, card.next_model) for card in cards):
        return True
    answered = Generation.objects.filter(model=model)
    if cards:  # a page may still offer what a worker has just left; an old name only costs a look at a day's rows
        answered = answered.filter(pk__gte=_first_id_since(LATELY_SECONDS))
    return answered.exists()


def _first_id_since(seconds: float) -> uuid.UUID:
    """The smallest id that a row made so long ago can have: ids are UUIDv7."""
    return uuid.UUID(int=int((time.time() - seconds) * 1000) << 80)


def is_held(model: str, cards: Sequence[WorkerCard]) -> bool:
    """Whether a live worker serves it, or begins to, and does not change to another."""
    return any(card.model.name == model and not card.next_model for card in cards)


def standing_in(cards: Sequence[WorkerCard]) -> Choice | None:
    """What answers at once where the model asked for does not: the site's default, else the first by name."""
    ready = {card.model.name: card.model.title for card in cards if card.state == "ready" and not card.next_model}
    default = settings.SMOLFLEET.default_model
    name = default if default in ready else min(ready, default="")
    return Choice(name, ready[name]) if name else None


def _coming(cards: Sequence[WorkerCard]) -> Choice | None:
    """What a worker is loading, or changes to as soon as it may."""
    loading = {card.model.name: card.model.title for card in cards if card.state == "loading"}
    loading |= {card.next_model: "" for card in cards if card.next_model and card.next_model not in loading}
    name = min(loading, default="")
    return Choice(name, loading[name]) if name else None
