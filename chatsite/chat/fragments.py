"""What a message looks like just now, ready for `templates/chat/_message.html`: text, state, numbers, neighbours.

Owns the reading of an answer that is still being written: all its text so far with the cursor at which a stream goes
on, so that a page shows everything without a script. Reads rows through `access` and logs through the inference
client; writes nothing. Called by `views`, and by `consumers` (in a thread) for the settled article of `done`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from chatsite.chat import dispatch, markdown
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.text import clean
from inference.errors import EventsExpired, StoreUnavailable
from inference.protocol import Cursor, EventKind, FinishReason, Log, Standing

SHOWN_MESSAGES = 40  # at the end of a conversation; earlier ones come when asked for
CACHED_ANSWERS = 512
MAX_CACHED_CHARS = 32_000
CUT_NOTES = {
    "max_tokens": "It reached the most tokens an answer may have.",
    "context": "It filled the model's context.",
    "time": "It reached the longest time an answer may take.",
    "loop": "The model only repeated itself, so the answer was ended here.",
}


@dataclass(frozen=True)
class Phase:
    """The status row of an answer being written. `name` is one of those that streams use; `text` says it to people."""

    name: str
    text: str


@dataclass(frozen=True)
class Siblings:
    """Where a message stands among the answers to the same question (or the wordings of it)."""

    position: int
    count: int
    before: UUID | None
    after: UUID | None


@dataclass(frozen=True)
class Shown:
    """One message as the page shows it. `tail` is text no finished block holds yet; only a live answer has one."""

    message: Message
    generation: Generation | None
    html: SafeString = field(default_factory=lambda: mark_safe(""))
    tail: str = ""
    reasoning: str = ""
    cursor: str = ""
    phase: Phase | None = None
    siblings: Siblings | None = None

    @property
    def is_user(self) -> bool:
        return self.message.role == Message.Role.USER

    @property
    def is_active(self) -> bool:
        return self.generation is not None and self.generation.is_active

    @property
    def status(self) -> str:
        return self.generation.status if self.generation else ""

    @property
    def note(self) -> str:
        """What a reader should know of how the answer ended; empty when it simply ended."""
        if self.generation is None or self.generation.finish_reason != FinishReason.LENGTH:
            return ""
        return CUT_NOTES.get(self.generation.cut, CUT_NOTES["max_tokens"])  # answers from before `cut` name none

    @property
    def tokens_per_second(self) -> float | None:
        facts = self.generation
        if facts is None or facts.completion_tokens < 2 or facts.decode_seconds <= 0:
            return None
        return (facts.completion_tokens - 1) / facts.decode_seconds

    @property
    def last_thought(self) -> str:
        """The newest line of the reasoning, for the one-line summary."""
        lines = self.reasoning.strip().splitlines()
        return lines[-1].strip()[-120:] if lines else ""


def shown(message: Message, siblings: Siblings | None = None) -> Shown:
    """The message as it is now. Redis being away leaves a live answer empty; its stream brings the text later."""
    generation = getattr(message, "generation", None)
    if message.role == Message.Role.USER:
        return Shown(message, None, siblings=siblings)
    if generation is not None and generation.is_active:
        return _live(message, generation, siblings)
    return Shown(
        message, generation, html=_settled_html(message.content), reasoning=message.reasoning, siblings=siblings
    )


def shown_path(conversation: Conversation, path: Sequence[Message]) -> list[Shown]:
    """The messages of `path` as they are now, each with its siblings."""
    parents = {message.parent_id for message in path}
    children: dict[UUID | None, list[UUID]] = {parent_id: [] for parent_id in parents}
    rows = conversation.messages.order_by("pk").values_list("parent_id", "pk")
    for parent_id, pk in rows.filter(parent_id__in=parents - {None}) if parents - {None} else ():
        children[parent_id].append(pk)
    if None in parents:
        children[None] = list(rows.filter(parent_id=None).values_list("pk", flat=True))
    return [shown(message, _siblings(message.pk, children[message.parent_id])) for message in path]


def message_html(message: Message) -> str:
    """The article of one message as it is now, for a stream's `done`. Its forms rely on the page's script for CSRF."""
    (turn,) = shown_path(message.conversation, [message])
    return render_to_string("chat/_message.html", {"shown": turn})


def _live(message: Message, generation: Generation, siblings: Siblings | None) -> Shown:
    client = dispatch.inference_client()
    try:
        log = client.read(generation.pk)
        standing = client.standing(generation.pk)
    except EventsExpired:
        return Shown(message, generation, phase=Phase("waiting", "Waiting"), siblings=siblings)
    except StoreUnavailable:
        return Shown(message, generation, phase=Phase("reconnecting", "Reconnecting"), siblings=siblings)
    stream = markdown.BlockStream()
    update = stream.feed(clean(log.text("content")))
    seq = log.events[-1].seq if log.events else 0
    return Shown(
        message,
        generation,
        html=mark_safe("".join(update.blocks)),
        tail=update.tail,
        reasoning=clean(log.text("reasoning")),
        cursor=str(Cursor(log.mark, seq)),
        phase=_phase(log, standing),
        siblings=siblings,
    )


def _phase(log: Log, standing: Standing) -> Phase:
    if log.finish is not None:
        return Phase("writing", "Saving")
    if standing.state == "lapsed":
        return Phase("recovering", "Another worker goes on")
    if standing.state == "waiting" and not log.events:
        eta = f" · about {standing.eta_seconds:.0f} s" if standing.eta_seconds else ""
        return Phase("waiting", f"Place {standing.position} of {standing.num_waiting}{eta}")
    kinds = {delta.kind for event in log.events for delta in event.deltas}
    if "content" in kinds:
        return Phase("writing", "Writing")
    if "reasoning" in kinds:
        return Phase("thinking", "Thinking")
    progress = next((e for e in reversed(log.events) if e.kind is EventKind.PROGRESS and e.num_total), None)
    if progress is not None:
        return Phase("reading", f"Reading prompt {100 * progress.num_done // progress.num_total} %")
    return Phase("loading" if log.events else "waiting", "Starting" if log.events else "Waiting")


def _siblings(pk: UUID, among: list[UUID]) -> Siblings | None:
    if len(among) < 2:
        return None
    index = among.index(pk)
    return Siblings(
        position=index + 1,
        count=len(among),
        before=among[index - 1] if index else None,
        after=among[index + 1] if index + 1 < len(among) else None,
    )


def _settled_html(content: str) -> SafeString:
    return _cached_html(content) if len(content) <= MAX_CACHED_CHARS else markdown.render(content)


@lru_cache(maxsize=CACHED_ANSWERS)
def _cached_html(content: str) -> SafeString:
    return markdown.render(content)
