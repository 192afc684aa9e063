"""The cards of the fleet: what a worker says of itself and of the model it serves, anew with every heartbeat.

Knows nothing of where they lie (that is `registry`). Workers write them; the web, the site worker and the operator's
commands read them. The bounds hold for who reads: what is beyond them is no card.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference.protocol import SamplingParams
from inference.wire import PROTOCOL_VERSION, crosses_processes

_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*\Z"

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=_NO_CONTROLS)]
ModelName = Annotated[str, Meta(min_length=1, max_length=100, pattern=_NO_CONTROLS)]  # as long as a row's
Label = Annotated[str, Meta(max_length=400, pattern=_NO_CONTROLS)]
Sentence = Annotated[str, Meta(max_length=2_000, pattern=r"^[^\x00]*\Z")]
Sentences = Annotated[tuple[Sentence, ...], Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Slots = Annotated[int, Meta(ge=0, le=4_096)]
Tokens = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


@crosses_processes
class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of the model it serves. `prompt_kit` is the key under which template and tokenizer lie;
    `adapters` are the LoRA adapters laid over it, each with its scale."""

    name: ModelName
    title: Label
    architecture: Label
    context_tokens: Tokens  # of one conversation
    prompt_kit: Annotated[str, Meta(max_length=100, pattern=_NO_CONTROLS)]
    thinking: bool = False
    tools: bool = False
    sampling: SamplingParams = SamplingParams()
    size_bytes: Count = 0
    quantization: Label = ""
    adapters: Sentences = ()


@crosses_processes
class WorkerCard(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's heartbeat. `degradations` say where it is less than it should be, `notes` what else is worth knowing;
    one sentence each."""

    name: Name
    model: ModelCard
    num_slots: Slots
    num_free_slots: Slots
    device: Label
    started_at: Seconds  # Unix seconds
    seen_at: Seconds  # Unix seconds, by the worker's clock
    state: Literal["loading", "ready", "draining"] = "ready"
    # What it is changing to (`SwapOrder`): its own model is leaving, new messages go elsewhere.
    next_model: Annotated[str, Meta(max_length=100, pattern=_NO_CONTROLS)] = ""
    notes: Sentences = ()
    degradations: Sentences = ()
    num_decoded_tokens: Count = 0
    engine_idle_seconds: Seconds = 0.0  # since the engine last finished a step while it had work; 0 when it has none
    version: int = PROTOCOL_VERSION
