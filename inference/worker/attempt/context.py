"""What one attempt needs of its worker: engine, prompt builder, log, publisher. Put together once per process.

Owns nothing itself. `worker.runtime` builds it, `attempt.generation` works with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from inference.config import InferenceConfig
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.waiting_room import WaitingRoom
from inference.engine.constraint import Constraint
from inference.engine.engine import Engine
from inference.errors import EngineError, InvalidRequest, StoreUnavailable
from inference.grammar import tool_grammar
from inference.grammar.matcher import Grammars
from inference.grammar.thinking import ThinkingConstraint
from inference.messages.generation import GenerationRequest, SamplingParams
from inference.output.thinking import ThinkTags
from inference.output.tool_calls import OPEN, ToolCallParser
from inference.prompt.builder import Prompt, PromptBuilder
from inference.worker.attempt.assistant_prefix import opening_tokens
from inference.worker.attempt.publisher import Publisher

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Served:
    """The model as this worker serves it. `context_tokens` is what one slot holds."""

    name: str
    context_tokens: int
    sampling: SamplingParams
    prompts: PromptBuilder
    token_bytes: Callable[[int], bytes]
    think_tags: ThinkTags | None
    grammars: Grammars

    @classmethod
    def of(cls, prompts: PromptBuilder) -> Served:
        kit = prompts.kit
        tags = None
        if kit.thinking is not None:
            tags = ThinkTags(
                kit.thinking.open,
                kit.thinking.close,
                prompts.tokenizer.id_of(kit.thinking.open),
                prompts.tokenizer.id_of(kit.thinking.close),
            )
        return cls(
            name=kit.model,
            context_tokens=kit.context_tokens,
            sampling=kit.sampling,
            prompts=prompts,
            token_bytes=prompts.tokenizer.token_bytes,
            think_tags=tags,
            grammars=Grammars(kit, prompts.tokenizer),
        )

    def sampling_of(self, request: GenerationRequest) -> SamplingParams:
        """What holds for it, the model's defaults included. Where no tool may be called, no call may begin."""
        sampling = request.sampling.over(self.sampling)
        opener = self.prompts.tokenizer.id_of(OPEN)
        if request.tools and not request.may_call and opener is not None:
            biases = {**(sampling.logit_bias or {}), opener: -100.0}
            sampling = msgspec.structs.replace(sampling, logit_bias=biases)
        return sampling

    def calls_in(self, request: GenerationRequest) -> ToolCallParser | None:
        """What finds tool calls in the answer; None where none may come. A call's id is the same for every attempt."""
        if not request.may_call:
            return None

        def id_of(index: int) -> str:
            return f"call_{hashlib.sha256(request.id.bytes + index.to_bytes(4)).hexdigest()[:24]}"

        dialect = self.prompts.dialect_of(request)
        return ToolCallParser(
            request.tools,
            id_of=id_of,
            dialect=dialect,
            is_parallel=request.is_parallel,
            is_forced=request.tool_choice == "required",
        )

    def constraint_for(
        self, request: GenerationRequest, sampling: SamplingParams, prompt: Prompt, generated: Sequence[int]
    ) -> Constraint | None:
        """What holds an answer that begins with `generated` to its schema, its calls or its budget; None for free text.

        Raises:
            InvalidRequest: it cannot be held to that, or those tokens do not follow it.
        """
        tags = self.think_tags_for(request)
        if tags is None and sampling.json_schema is not None and not tool_grammar.is_held(request):
            return self.grammars.constraint(sampling.json_schema, generated, follows=prompt.given)
        thinks = tags is not None and (request.thinking is not False or not self._is_held(request))
        inner = self._inner(request, follows=prompt.given)
        constraint = inner
        if tags is not None and thinks and (tags.are_tokens if inner else sampling.thinking_budget is not None):
            constraint = ThinkingConstraint(
                tags,
                [tags.close_id] if tags.close_id is not None else self.prompts.tokenizer.encode_text(tags.close),
                self.token_bytes,
                vocab_size=self.prompts.tokenizer.vocab_size,
                starts_inside=prompt.starts_thinking,
                budget=sampling.thinking_budget,
                inner=inner,
                end_tokens=self.prompts.kit.end_tokens if self._is_held(request) else (),
            )
        if constraint is not None:
            try:
                for token in generated:
                    constraint.accept(int(token))
            except EngineError as error:
                kind = "call" if sampling.json_schema is None else "call or JSON"
                raise InvalidRequest(f"The answer written so far is no {kind} as asked for.", param="tools") from error
        return constraint

    def _inner(self, request: GenerationRequest, *, follows: str) -> Constraint | None:
        """What holds the answer itself, thoughts apart."""
        request = msgspec.structs.replace(request, tool_dialect=self.prompts.dialect_of(request))
        schema, tags = request.sampling.json_schema, self.think_tags_for(request)
        if tool_grammar.is_held(request):
            return self.grammars.tool_calls(request)
        if schema is not None:
            return self.grammars.constraint(schema, follows=follows, may_break=True)
        if tool_grammar.is_strict(request) and (tags is None or tags.are_tokens):
            return self.grammars.begun_calls(request)
        return None

    @staticmethod
    def _is_held(request: GenerationRequest) -> bool:
        """Whether a grammar holds the whole answer."""
        return request.sampling.json_schema is not None or tool_grammar.is_held(request)

    def settled(self, request: GenerationRequest) -> GenerationRequest:
        """`request` as this model can answer it: where a thought's tags are text, no thought comes before JSON, for the
        grammar could not tell them apart."""
        if request.thinking and request.sampling.json_schema is not None and not self.think_tags_for(request):
            return msgspec.structs.replace(request, thinking=False)
        return request

    def opening_tokens(self, request: GenerationRequest, prompt: Prompt) -> list[int]:
        """What the answer begins with, where that is given."""
        tags = self.think_tags_for(request)
        return opening_tokens(request.opening, prompt, self.prompts.tokenizer, tags)

    def think_tags_for(self, request: GenerationRequest) -> ThinkTags | None:
        """What parts thoughts from content; None where all is content. JSON without a thought is: a tag in it is a
        string's text. With one its tags must be tokens, which no string can hold."""
        if request.sampling.json_schema is None:
            return self.think_tags
        return self.think_tags if request.thinking and self.think_tags and self.think_tags.are_tokens else None


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """`ring` and `send_record` may raise: both are hints that the sweeper repeats."""

    config: InferenceConfig
    model: Served
    engine: Engine
    event_log: EventLog
    room: WaitingRoom
    leases: Leases
    publisher: Publisher
    ring: Callable[[str], None]
    send_record: Callable[[UUID], None]


def hint(log: Any, what: str, send: Callable[[T], None], about: T) -> None:
    """Send a hint (`ring` or `send_record`); the store being away is said and no more."""
    try:
        send(about)
    except StoreUnavailable as error:
        log.warning("hint_not_sent", what=what, error=error.message)  # the sweeper repeats it
