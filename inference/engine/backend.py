"""What the engine needs of a model: one forward call over many sequences, and their KV memory.

`inference.llama` implements it over llama.cpp; `inference.testing.ScriptedBackend` without a model. All methods are
called from the engine's thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inference.engine.batch import Batch
from inference.engine.logits import Excerpt, LogitRows, SlotState


class Backend(Protocol):
    """A model with KV memory for `num_slots` sequences of at most `context_tokens` each.

    `pool_tokens` is what all slots together may hold: slots x context, or less where they share one pool. A position
    that several slots hold through `copy_prefix` counts once for each.
    """

    @property
    def num_slots(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def pool_tokens(self) -> int: ...

    @property
    def is_async(self) -> bool:
        """Whether `forward` returns before the device is done, so that host work may be done meanwhile."""

    @property
    def max_batch_tokens(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def forward(self, batch: Batch) -> None:
        """Evaluate the batch and extend each slot's KV; may return before the device is done.

        Every slot's positions go on exactly after the ones it holds.

        Raises:
            EngineError: the device refused; the KV of every slot in the batch is unknown and must be cleared.
        """

    def logits(self) -> LogitRows:
        """Wait for the last forward; shape (rows that asked for logits, vocab_size), in batch order.

        The memory is the backend's: valid until the next forward, and the sampler may write into it. Where excerpts are
        given only the rows of slots that were set to come whole mean anything.
        """

    @property
    def wants_low_slots(self) -> bool:
        """Whether a step is cheaper the lower the highest slot in use."""

    @property
    def gives_excerpts(self) -> bool:
        """Whether rows come as excerpts, but for slots that were set otherwise."""

    def set_whole(self, slot: int, is_whole: bool) -> None:
        """Whether the rows of this slot are to come whole from the next forward on; costly when it changes."""

    def excerpt(self, rows: Sequence[int]) -> Excerpt:
        """Wait for the last forward; excerpts of these of its rows (rising), none of which was set to come whole."""

    def remove_range(self, slot: int, start: int, end: int = -1) -> None:
        """Forget positions start..end of a slot (end -1: all that follow)."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make `target` (empty) hold the first `length` positions of `source`."""

    def save(self, slot: int) -> SlotState:
        """A copy in host memory of everything the slot holds. Raises EngineError when it cannot be made."""

    def restore(self, slot: int, state: SlotState) -> bool:
        """Make an empty slot hold what `save` copied; False, and the slot is empty, when the backend refused."""

    def close(self) -> None:
        """Give everything back. Called once."""
