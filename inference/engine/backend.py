"""What the engine needs of a model: one forward call over many sequences, and their KV memory.

`inference.llama` implements it over llama.cpp; `inference.testing.ScriptedBackend` without a model. All methods are
called from the engine's thread alone.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from inference.engine.batch import Batch

TokenIds = npt.NDArray[np.int32]
LogitRows = npt.NDArray[np.float32]


class Backend(Protocol):
    """A model with KV memory for `num_slots` sequences of at most `context_tokens` each."""

    @property
    def num_slots(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

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

        The memory is the backend's: valid until the next forward, and the sampler may write into it.
        """

    def remove_range(self, slot: int, start: int, end: int = -1) -> None:
        """Forget positions start..end of a slot (end -1: all that follow)."""

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Make `target` (empty) hold the first `length` positions of `source`."""

    def close(self) -> None:
        """Give everything back. Called once."""
