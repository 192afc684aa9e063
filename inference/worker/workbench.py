"""What one attempt needs of its worker: engine, prompt builder, log, publisher. Put together once per process.

Owns nothing itself. `worker.runtime` builds it, `worker.generation` works with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from inference.config import InferenceConfig
from inference.engine.engine import Engine
from inference.event_log import EventLog
from inference.output.thinking import ThinkTags
from inference.prompt.builder import PromptBuilder
from inference.protocol import GenerationRequest, SamplingParams
from inference.waiting_room import WaitingRoom
from inference.worker.publisher import Publisher


@dataclass(frozen=True, kw_only=True)
class Served:
    """The model as this worker serves it. `context_tokens` is what one slot holds."""

    name: str
    context_tokens: int
    sampling: SamplingParams
    prompts: PromptBuilder
    token_bytes: Callable[[int], bytes]
    think_tags: ThinkTags | None

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
        )

    def sampling_of(self, request: GenerationRequest) -> SamplingParams:
        return request.sampling.over(self.sampling)


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """`ring` and `send_record` may raise: both are hints that the sweeper repeats."""

    config: InferenceConfig
    model: Served
    engine: Engine
    event_log: EventLog
    room: WaitingRoom
    publisher: Publisher
    ring: Callable[[str], None]
    send_record: Callable[[UUID], None]
