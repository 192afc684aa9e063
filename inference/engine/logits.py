"""The arrays that backend, sampler and cache hand to each other, and what a device hands over of its logits.

Shapes and meaning alone: no work on them, and no import of the engine. So all its parts may know them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]
LogitRows = npt.NDArray[np.float32]
SlotState = npt.NDArray[np.uint8]  # opaque; of the same backend only

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Excerpt:
    """Of n rows, b blocks each of w logits: `values` (n, b * w), `maxima` (n, b) the largest of each block, `blocks`
    (n, b) the number of each block in its row, `shares` (n, w) the softmax of the first of them, NaN where the row
    holds NaN. w is a power of 2."""

    values: npt.NDArray[np.float32]
    maxima: npt.NDArray[np.float32]
    blocks: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float32]

    def masses(self) -> Floats:
        """The sum of exp(logit - largest) over each whole row; NaN where the row's first block has no share in it."""
        best = self.shares.max(axis=1)
        best = np.where(best > 0, best, np.float32(np.nan))
        masses: Floats = np.exp(self.maxima[:, 0].astype(np.float64) - self.maxima.max(axis=1)) / best
        return masses
