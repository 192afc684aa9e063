"""What a device hands over of its logits in place of all of them, and the draw from it.

A row of 128,256 logits is half a megabyte, and reading 32 of them costs the host more than choosing among them. So the
device cuts each row into blocks, finds the blocks with the largest maxima, and hands over those alone, with the mass of
the whole row. Every logit above the smallest of these maxima is then known, so most draws are decided exactly by an
excerpt; for the others (`UNDECIDED`) the whole row has to be asked for.

Every step goes through here on a GPU, and its arrays are small: each numpy call counts, so what depends on the plans
alone is kept from step to step. Knows nothing of devices; the sampler calls it, on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.engine.logits import Excerpt, Floats, Ids
from inference.engine.sampling.filters import Filters, draw
from inference.engine.sampling.plan import SamplerPlan, uniforms_of
from inference.engine.sampling.top_k import ids_of, keys_of, logits_of, table_of

NUM_BLOCKS = 64  # of each row; top_k up to about so many is decided by an excerpt
MAX_TOP_K = 48  # leaves blocks for end tokens that are forbidden

BAD_ROW = -1  # in place of a token: the row holds NaN, or no finite logit
UNDECIDED = -3  # in place of a token: the excerpt does not hold enough of the row

_FEW_ROWS = 8  # fewer draws are made sooner one by one


def is_enough_for(plan: SamplerPlan) -> bool:
    """Whether an excerpt can decide a plan's draws at all. Edited rows, logprobs and unfiltered draws need it whole."""
    if plan.edits_logits or plan.num_logprobs is not None or plan.is_unfiltered:
        return False
    if plan.is_greedy or plan.top_k:
        return plan.is_greedy or plan.top_k <= MAX_TOP_K
    # What is forbidden counts in the row's mass, and may be the largest.
    return plan.typical_p == 1.0 and not plan.ignores_end


@dataclass(frozen=True)
class _Columns:
    """What a list of plans says, as arrays. `ranks`: which of the rising block maxima is the floor of a counted row;
    `most`: how many candidates it has at most."""

    filters: Filters
    seeds: npt.NDArray[np.uint64]
    rows: Ids
    ranks: Ids
    is_counted: npt.NDArray[np.bool_]
    has_open: bool
    most: Ids
    no_totals: Floats
    has_forbidden: npt.NDArray[np.bool_] | None

    @classmethod
    def of(cls, plans: Sequence[SamplerPlan], num_forbidden: int) -> _Columns:
        filters = Filters.of(plans)
        counts = filters.wanted.counts
        has_forbidden = np.array([plan.ignores_end for plan in plans]) & (num_forbidden > 0)
        # As many blocks as tokens may be forbidden in them are looked at on top of those wanted.
        needed = np.where(has_forbidden, counts + num_forbidden, counts)
        return cls(
            filters,
            np.array([plan.mixed_seed for plan in plans], np.uint64),
            np.arange(len(plans)),
            np.clip(NUM_BLOCKS - needed, 0, NUM_BLOCKS - 1),
            counts > 0,
            bool((counts == 0).any()),
            np.where(counts > 0, counts, np.iinfo(np.int64).max),
            np.full(len(plans), np.nan),
            has_forbidden if has_forbidden.any() else None,
        )


class ExcerptSampler:
    """`end_tokens` are those that a plan which ignores them forbids."""

    def __init__(self, end_tokens: Ids) -> None:
        self._end_tokens = end_tokens
        self._plans: list[SamplerPlan] = []
        self._columns = _Columns.of([SamplerPlan()], 0)

    def sample(self, excerpt: Excerpt, plans: list[SamplerPlan], positions: Sequence[int]) -> list[int]:
        """One token of each row, BAD_ROW or UNDECIDED; `positions` number the draws."""
        if plans != self._plans:  # compares by identity first: the same list of plans costs next to nothing
            self._plans, self._columns = plans, _Columns.of(plans, len(self._end_tokens))
        columns, filters = self._columns, self._columns.filters
        values, num_rows = excerpt.values, len(excerpt.values)
        shift = (values.shape[1] // excerpt.maxima.shape[1]).bit_length() - 1
        ranked = np.sort(excerpt.maxima, axis=1)  # rising; NaN last
        largest = ranked[:, -1]
        ranks = columns.ranks
        if ranked.shape[1] != NUM_BLOCKS:
            ranks = np.maximum(ranks + (ranked.shape[1] - NUM_BLOCKS), 0)
        floors = ranked[columns.rows, ranks]
        if columns.has_open:
            with np.errstate(invalid="ignore"):  # of a bad row
                limits = np.nextafter((largest + filters.wanted.floors).astype(np.float32), np.float32(-np.inf))
            floors = np.where(columns.is_counted, floors, np.fmax(ranked[:, 0], limits))
        is_good = np.isfinite(largest + excerpt.shares[:, 0])
        if not is_good.all():
            floors = np.where(is_good, floors, np.float32(np.nan))  # nothing reaches NaN
        rows, places = (values >= floors[:, None]).nonzero()
        logits = values[rows, places]
        ids = (excerpt.blocks[rows, places >> shift].astype(np.int64) << shift) + (places & ((1 << shift) - 1))
        if columns.has_forbidden is not None:
            kept = ~(columns.has_forbidden[rows] & np.isin(ids, self._end_tokens))
            rows, ids, logits = rows[kept], ids[kept], logits[kept]
        lengths = np.bincount(rows, minlength=num_rows)
        if num_rows == 1 and len(rows):
            keys = np.sort(keys_of(logits, ids))[None]
        else:
            keys = table_of(keys_of(logits, ids), rows, lengths)
        is_short = lengths < filters.wanted.counts
        lengths = np.minimum(lengths, columns.most)
        shifted = logits_of(keys)
        shifted -= shifted[:, :1].copy()
        totals = columns.no_totals
        if columns.has_open:
            is_open = ~columns.is_counted & (filters.wanted.top_ps < 1.0)
            masses = excerpt.masses()
            totals = np.where(is_open, masses, np.nan)
            shifted[np.arange(keys.shape[1]) >= lengths[:, None]] = -np.inf
            is_short |= ~columns.is_counted & (limits < ranked[:, 0])
            is_short &= ~is_open | ~(np.exp(shifted).sum(axis=1) >= filters.wanted.top_ps * masses)
        weights = filters.weights(slice(None), shifted, lengths, totals)
        if num_rows < _FEW_ROWS:
            draws = np.array([plan.uniform(position) for plan, position in zip(plans, positions, strict=True)])
        else:
            draws = uniforms_of(columns.seeds, np.array(positions, np.uint64))
        drawn = draw(weights, draws)
        tokens = ids_of(keys[columns.rows, drawn])
        tokens[is_short] = UNDECIDED
        tokens[~is_good] = BAD_ROW
        chosen: list[int] = tokens.tolist()
        return chosen
