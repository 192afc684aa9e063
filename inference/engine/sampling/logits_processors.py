"""What changes single logits of a row before the filters: mask, forbidden tokens, biases, penalties.

Writes into the row. Every edit touches few places, but a mask that allows few tokens, which clears the row. Forbidding
adds -inf instead of writing it, so that NaN and +inf stay to be seen. The sampler calls it, each thread for its rows.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import numpy.typing as npt

from inference.engine.constraint import TokenMask
from inference.engine.sampling.plan import REPETITION_WINDOW_TOKENS, SamplerPlan
from inference.engine.sampling.token_history import TokenHistory

Row = npt.NDArray[np.float32]


def apply_mask(row: Row, mask: TokenMask) -> float:
    """Forbid what the mask does not allow; returns the largest logit of before. A bad row is left as it is."""
    largest = float(row.max())
    if not np.isfinite(largest):
        return largest
    allowed = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little").view(np.bool_)
    if 2 * np.count_nonzero(allowed) > len(row):
        row[np.flatnonzero(~allowed)] = -np.inf
    else:
        ids = np.flatnonzero(allowed)
        values = row[ids]
        row.fill(-np.inf)
        row[ids] = values
    return largest


def edit(row: Row, plan: SamplerPlan, history: TokenHistory, dry_breakers: Set[int]) -> float:
    """Apply the plan's biases, penalties and DRY; returns the largest logit that a bias forbade, or -inf."""
    forbidden = -np.inf
    if plan.logit_bias:
        ids, biases = plan.biases
        if ids[-1] >= len(row):  # refused where it came in; whatever gets here must not end a step
            ids, biases = ids[ids < len(row)], biases[ids < len(row)]
        before = row[ids]
        with np.errstate(invalid="ignore"):  # +inf forbidden is NaN: a bad row
            row[ids] = before + biases
        forbidden = float(np.max(before, initial=-np.inf, where=biases == -np.inf))
    if plan.repetition_penalty != 1.0:
        ids = np.unique(history.last(REPETITION_WINDOW_TOKENS))
        values = row[ids]
        row[ids] = np.where(values > 0, values / plan.repetition_penalty, values * plan.repetition_penalty)
    if plan.counts_generated:
        counted, counts = history.generated_counts()
        row[counted] -= counts * plan.frequency_penalty + plan.presence_penalty
    if plan.dry_multiplier > 0.0:
        ids, penalties = history.repeats().penalties(plan, dry_breakers)
        row[ids] -= penalties
    return forbidden
