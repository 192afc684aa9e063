"""Settings under a name, with which a conversation may begin: as much as the chat knows of personas.

The chat offers them on its empty page and fills its settings in; it keeps none, and a conversation that has begun holds
a copy that no longer knows where it came from. Who keeps them registers as the source, being an app above this one.
Called by `page` and `temporary`; synchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from chatsite.accounts.models import User
from chatsite.chat.actions.settings import Tuning
from chatsite.chat.models import Conversation

MAX_SHOWN = 12  # on the empty page; the rest is a page away


@dataclass(frozen=True)
class Preset:
    """`line` says in a few words what it is for; empty: the name does."""

    id: UUID
    name: str
    line: str = ""


class Source(Protocol):
    def presets_of(self, user: User) -> Sequence[Preset]:
        """All that this person may begin with, in the order in which they are offered."""

    def tuning_of(self, user: User, preset_id: UUID) -> Tuning:
        """Its settings, as they are now. Raises Http404 unless this person may begin with it."""


@dataclass(frozen=True)
class Beginning:
    """What the page of a conversation that has not begun starts from. `is_missing`: what was asked for is not there."""

    shown: Sequence[Preset] = ()
    num_more: int = 0
    chosen: Preset | None = None
    is_missing: bool = False
    frame: Conversation = field(default_factory=Conversation)  # never saved: the settings alone


_sources: list[Source] = []


def register(source: Source) -> None:
    """From now on it is asked for presets. For the `ready` of an app."""
    _sources[:] = [source]


def beginning(user: User, wanted: str = "") -> Beginning:
    """What is offered to this person, and the preset `wanted` (its id as text; empty: none) with its settings."""
    if not _sources:
        return Beginning(is_missing=bool(wanted))
    (source,) = _sources
    offered = source.presets_of(user)
    chosen = next((preset for preset in offered if str(preset.id) == wanted), None)
    shown = list(offered[:MAX_SHOWN])
    if chosen is not None and chosen not in shown:
        shown.append(chosen)
    return Beginning(
        shown,
        num_more=len(offered) - len(shown),
        chosen=chosen,
        is_missing=bool(wanted) and chosen is None,
        frame=Conversation(**source.tuning_of(user, chosen.id)) if chosen else Conversation(),
    )
