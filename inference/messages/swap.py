"""What is said about changing a worker's model: an operator's order, and the worker's reports on it.

Knows nothing of where they lie (that is `orders`) nor of how a model is changed (`worker/swapping`).
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

from inference.messages.bounds import Count, Label, Sentence
from inference.messages.serialization import PROTOCOL_VERSION, crosses_processes


@crosses_processes
class SwapOrder(msgspec.Struct, frozen=True, kw_only=True):
    """To one worker: serve `model` instead (a catalog name, a path there, or an address at the hub).

    `timeout_seconds` is how long what waits for the old model may take to be answered, where nobody else serves it.
    """

    id: UUID
    model: str
    timeout_seconds: float
    version: int = PROTOCOL_VERSION


@crosses_processes
class SwapReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far a worker is with an order; the newest replaces the one before. `sentence` says why an order ended badly.

    `waiting`: the worker is the last of its old model and answers whoever waits for that. `draining`: it accepts
    nothing more. The ends: `ready`, `refused` (nothing has changed), `called_off` (it serves the old model as before),
    `failed` (the new model could not be loaded; it serves the old one again).
    """

    order: UUID
    state: Literal["checking", "waiting", "draining", "loading", "ready", "refused", "called_off", "failed"]
    model: Label = ""  # the new model's catalog name, once it is known
    num_answers: Count = 0  # that are still to be written before it goes on
    sentence: Sentence = ""
    version: int = PROTOCOL_VERSION

    @property
    def is_end(self) -> bool:
        return self.state in ("ready", "refused", "called_off", "failed")
