"""The cards of the fleet: what a worker says of itself and of the model it serves, anew with every heartbeat.

Knows nothing of where they lie (that is `registry`). Workers write them; the web, the site worker and the operator's
commands read them; what is beyond its bounds is no card.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.messages.bounds import Count, Label, ModelName, ModelNameOrNone, Name, Seconds, Sentences, Slots, Tokens
from inference.messages.generation import SamplingParams
from inference.messages.serialization import PROTOCOL_VERSION, crosses_processes


@crosses_processes
class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of the model it serves. `prompt_kit` is the key under which template and tokenizer lie;
    `adapters` are the LoRA adapters laid over it, each with its scale."""

    name: ModelName
    title: Label
    architecture: Label
    context_tokens: Tokens  # of one conversation
    prompt_kit: Label
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
    next_model: ModelNameOrNone = ""
    notes: Sentences = ()
    degradations: Sentences = ()
    num_decoded_tokens: Count = 0
    engine_idle_seconds: Seconds = 0.0  # since the engine last finished a step while it had work; 0 when it has none
    version: int = PROTOCOL_VERSION
