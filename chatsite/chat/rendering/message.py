"""What a message looks like just now, ready for `templates/chat/_message.html`: text, state, numbers, neighbours.

Owns the reading of an answer that is still being written: all its text so far with the cursor at which a stream goes
on, so that a page shows everything without a script. Reads rows through `access` and logs through the inference
client; writes nothing. Called by `views`, and by `sse` (in a thread) for the settled article of `done`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from uuid import UUID

import msgspec
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from chatsite.chat import inference
from chatsite.chat.generation import request, tool_calls
from chatsite.chat.models import Conversation, Generation, Message
from chatsite.chat.queries import access
from chatsite.chat.rendering import error_text
from chatsite.chat.rendering import stream as rendering_stream
from chatsite.chat.rendering.status_text import Phase, phase_of
from chatsite.chat.text import clean
from chatsite.chat.tools import catalog
from inference.coordination.log_view import Cursor, Log
from inference.errors import EventsExpired, StoreUnavailable
from inference.messages.generation import EventKind, FinishReason, Standing

SHOWN_MESSAGES = 30  # at the end of a conversation; earlier ones come when asked for
CACHED_ANSWERS = 512
MAX_CACHED_CHARS = 32_000
_arguments_decoder = msgspec.json.Decoder(
    dict[str, object]
)  # made at import, by one thread: see inference.messages.serialization
CUT_NOTES = {
    "max_tokens": gettext_lazy("It reached the most tokens an answer may have."),
    "context": gettext_lazy("It filled the model's context."),
    "time": gettext_lazy("It reached the longest time an answer may take."),
    "loop": gettext_lazy("The model only repeated itself, so the answer was ended here."),
}


@dataclass(frozen=True)
class Siblings:
    """Where a message stands among the answers to the same question (or the wordings of it)."""

    position: int
    count: int
    before: UUID | None
    after: UUID | None


@dataclass(frozen=True)
class ShownCall:
    """A call of a tool. `arguments` as the model wrote them, one value to a line; `result` None while it is made."""

    title: str
    arguments: str
    result: str | None
    has_failed: bool
    seconds: float


@dataclass(frozen=True)
class Shown:
    """One message as the page shows it. `tail` is what no finished block holds yet; only a live answer has one."""

    message: Message
    generation: Generation | None
    html: SafeString = field(default_factory=lambda: mark_safe(""))
    tail: SafeString = field(default_factory=lambda: mark_safe(""))
    reasoning: str = ""
    cursor: str = ""
    phase: Phase | None = None
    siblings: Siblings | None = None
    is_first_seen: bool = False  # the model no longer sees what is above
    is_unanswered: bool = False  # a question at the end of the path: its answer was deleted

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
        return str(CUT_NOTES.get(self.generation.cut, CUT_NOTES["max_tokens"]))  # answers from before `cut` name none

    @property
    def failure(self) -> str:
        return error_text.sentence_of(self.generation) if self.generation else ""

    @property
    def tokens_per_second(self) -> float | None:
        facts = self.generation
        if facts is None or facts.completion_tokens < 2 or facts.decode_seconds <= 0:
            return None
        return (facts.completion_tokens - 1) / facts.decode_seconds

    @property
    def thought(self) -> SafeString:
        """The reasoning of a settled answer, by the renderer of answers."""
        return _rendered(self.reasoning, rendering_stream.scope_of(self.message.pk) + "t")

    @property
    def calls(self) -> list[ShownCall]:
        """The calls of tools that it ended with."""
        return shown_calls(self.message)

    @property
    def is_calling(self) -> bool:
        return self.message.calling_since is not None

    @property
    def can_go_on(self) -> bool:
        """Whether there is more to say, and something to go on from."""
        has_begun = bool(self.message.content or self.message.reasoning)
        return has_begun and self.generation is not None and self.generation.is_unfinished

    @property
    def last_thought(self) -> str:
        """The newest line of the reasoning, for the one-line summary."""
        lines = self.reasoning.strip().splitlines()
        return lines[-1].strip()[-120:] if lines else ""


def shown_calls(message: Message) -> list[ShownCall]:
    return [
        ShownCall(catalog.title_of(call.name), _arguments(call), call.result, call.has_failed, call.seconds)
        for call in tool_calls.of(message)
    ]


def _arguments(call: tool_calls.Call) -> str:
    """Code stands on lines of its own; anything else as JSON."""
    try:
        values = _arguments_decoder.decode(call.arguments or "{}")
    except msgspec.DecodeError:
        return call.arguments
    if len(values) == 1 and isinstance(text := next(iter(values.values())), str):
        return text
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() if values else ""


def shown(message: Message, siblings: Siblings | None = None) -> Shown:
    """The message as it is now. Redis being away leaves a live answer empty; its stream brings the text later."""
    generation = getattr(message, "generation", None)
    if message.role == Message.Role.USER:
        return Shown(message, None, siblings=siblings)
    if generation is not None and generation.is_active:
        return _live(message, generation, siblings)
    return Shown(message, generation, html=_settled_html(message), reasoning=message.reasoning, siblings=siblings)


def shown_path(conversation: Conversation, path: Sequence[Message]) -> list[Shown]:
    """The messages of `path` as they are now, each with its siblings."""
    return _shown_path(conversation, path, first_seen(conversation))


def _shown_path(conversation: Conversation, path: Sequence[Message], first: UUID | None) -> list[Shown]:
    parents = {message.parent_id for message in path}
    children: dict[UUID | None, list[UUID]] = {parent_id: [] for parent_id in parents}
    rows = conversation.messages.order_by("pk").values_list("parent_id", "pk")
    for parent_id, pk in rows.filter(parent_id__in=parents - {None}) if parents - {None} else ():
        children[parent_id].append(pk)
    if None in parents:
        children[None] = list(rows.filter(parent_id=None).values_list("pk", flat=True))
    return [
        replace(
            shown(message, _siblings(message.pk, children[message.parent_id])),
            is_first_seen=message.pk == first,
            is_unanswered=message.role == Message.Role.USER and message.pk == conversation.leaf_id,
        )
        for message in path
    ]


def message_html(message: Message, *, with_body: bool = True) -> str:
    """The article of one message as it is now, for a stream's `done`. Its forms rely on the page's script for CSRF."""
    first = first_seen(message.conversation)
    (turn,) = _shown_path(message.conversation, [message], first)
    if not with_body:
        turn = replace(turn, html=mark_safe(""))
    context = {"shown": turn, "is_news": True, "first_seen": first}
    return render_to_string("chat/_message.html", context)


def first_seen(conversation: Conversation) -> UUID | None:
    """The first message of the shown path that the model still saw for its newest answer; None: it saw all.

    What failed or is empty is shown to readers alone, and counts for nothing.
    """
    if not Generation.objects.filter(message__conversation=conversation, num_dropped__gt=0).exists():
        return None
    path = access.path_of(conversation)
    for index in range(len(path) - 1, -1, -1):
        generation = getattr(path[index], "generation", None)
        if generation is not None and generation.prompt_tokens:
            before = [message for message in path[:index] if request.is_for_the_model(message)]
            seen = [message.pk for message in before for _turn in request.turns_of(message)]
            return seen[generation.num_dropped] if 0 < generation.num_dropped < len(seen) else None
    return None


def _live(message: Message, generation: Generation, siblings: Siblings | None) -> Shown:
    client = inference.inference_client()
    try:
        log = client.read(generation.pk)
        standing = client.standing(generation.pk)
    except EventsExpired:
        return Shown(
            message, generation, phase=_stopping(generation) or phase_of({"phase": "waiting"}), siblings=siblings
        )
    except StoreUnavailable:
        return Shown(message, generation, phase=Phase("reconnecting", _("Reconnecting")), siblings=siblings)
    stream = rendering_stream.BlockStream(rendering_stream.scope_of(message.pk))
    update = stream.feed(clean(log.text("content")))
    seq = log.events[-1].seq if log.events else 0
    return Shown(
        message,
        generation,
        html=mark_safe("".join(update.blocks)),
        tail=mark_safe(stream.view().whole),
        reasoning=clean(log.text("reasoning")),
        cursor=str(Cursor(log.mark, seq)),
        phase=_stopping(generation) or _phase(log, standing),
        siblings=siblings,
    )


def _stopping(generation: Generation) -> Phase | None:
    return Phase("stopping", _("Stopping")) if generation.stop_requested else None


def _phase(log: Log, standing: Standing) -> Phase:
    if log.finish is not None:
        return Phase("writing", _("Saving"))
    if standing.state == "lapsed":
        return phase_of({"phase": "recovering"})
    if standing.state == "waiting" and not log.events:
        place = {"position": standing.position, "of": standing.num_waiting, "eta_seconds": standing.eta_seconds}
        return phase_of({"phase": "waiting", **place})
    kinds = {delta.kind for event in log.events for delta in event.deltas}
    if "tool_call" in kinds:
        return phase_of({"phase": "calling"})
    if "content" in kinds:
        return phase_of({"phase": "writing"})
    if "reasoning" in kinds:
        return phase_of({"phase": "thinking"})
    progress = next((e for e in reversed(log.events) if e.kind is EventKind.PROGRESS and e.num_total), None)
    if progress is not None:
        return phase_of({"phase": "reading", "done": progress.num_done, "total": progress.num_total})
    return phase_of({"phase": "reading" if log.events else "waiting"})


def _siblings(pk: UUID, among: list[UUID]) -> Siblings | None:
    if len(among) < 2 or pk not in among:  # deleted a moment ago
        return None
    index = among.index(pk)
    return Siblings(
        position=index + 1,
        count=len(among),
        before=among[index - 1] if index else None,
        after=among[index + 1] if index + 1 < len(among) else None,
    )


def _settled_html(message: Message) -> SafeString:
    return _rendered(message.content, rendering_stream.scope_of(message.pk))


def _rendered(text: str, scope: str) -> SafeString:
    if len(text) > MAX_CACHED_CHARS:
        return rendering_stream.render(text, scope)
    return _cached_html(text, scope, get_language())


@lru_cache(maxsize=CACHED_ANSWERS)
def _cached_html(content: str, scope: str, language: str | None) -> SafeString:
    """`language` tells apart what is rendered: the buttons of code are in it."""
    return rendering_stream.render(content, scope)
