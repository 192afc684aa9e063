"""The cards of the fleet: what a worker says of itself and of the model it serves, anew with every heartbeat.

Knows nothing of where they lie (that is `registry`). Workers write them; the web, the site worker and the operator's
commands read them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inference.protocol import SamplingParams
from inference.wire import PROTOCOL_VERSION, crosses_processes


@crosses_processes
class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of the model it serves. `prompt_kit` is the key under which template and tokenizer lie;
    `adapters` are the LoRA adapters laid over it, each with its scale."""

    name: str
    title: str
    architecture: str
    context_tokens: int  # of one conversation
    prompt_kit: str
    thinking: bool = False
    tools: bool = False
    sampling: SamplingParams = SamplingParams()
    size_bytes: int = 0
    quantization: str = ""
    adapters: tuple[str, ...] = ()


@crosses_processes
class WorkerCard(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's heartbeat. `degradations` say where it is less than it should be, `notes` what else is worth knowing;
    one sentence each."""

    name: str
    model: ModelCard
    num_slots: int
    num_free_slots: int
    device: str
    started_at: float  # Unix seconds
    seen_at: float  # Unix seconds, by the worker's clock
    state: Literal["loading", "ready", "draining"] = "ready"
    next_model: str = ""  # what it is changing to (`SwapOrder`): its own model is leaving, new messages go elsewhere
    notes: tuple[str, ...] = ()
    degradations: tuple[str, ...] = ()
    num_decoded_tokens: int = 0
    engine_idle_seconds: float = 0.0  # since the engine last finished a step while it had work; 0 when it has none
    version: int = PROTOCOL_VERSION
