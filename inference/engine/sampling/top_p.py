"""Open-ended top-p without its row's exact mass: most draws are decided by bounds.

Top-p keeps the largest logits until they hold a part of the row's whole mass, and the whole mass means a pass over the
vocabulary that costs five times the search for the largest logits. But the draw falls among the kept ones by falling
logit, and most often near the top: a total known to lie between two bounds gives a smallest and a largest goal, and
when both fall on the same candidate, that is the exact answer. Pure; the sampler calls it, each thread for its rows.
"""

from __future__ import annotations

import numpy as np

from inference.engine.logits import Floats, Ids
from inference.engine.sampling.filters import Filters
from inference.engine.sampling.top_k import Shortlist, ids_of, logits_of

_UNDECIDED = -1
_ROUNDING = 1e-9  # float64 sums of the exact way stray far less; a goal this near an edge is left to it
_LEAST_TEMPERATURE = 1e-3


def draw_by_bounds(shortlist: Shortlist, rows: Ids, filters: Filters, draws: Floats) -> Ids:
    """The tokens of open `rows` as the exact draw gives them; -1 where the bounds leave it open."""
    keys, lengths = shortlist.keys[rows], shortlist.lengths[rows]
    low, high = shortlist.low[rows], shortlist.high[rows]
    temperatures, top_ps = filters.temperatures[rows], filters.top_ps[rows]
    shifted = logits_of(keys) - shortlist.largest[rows, None]
    shifted[np.arange(shifted.shape[1]) >= lengths[:, None]] = -np.inf
    masses = np.exp(shifted).cumsum(axis=1)
    with np.errstate(over="ignore"):  # by a temperature next to nothing: -inf is what is meant
        cooled = np.exp(shifted / temperatures[:, None]).cumsum(axis=1)

    by_floor = np.minimum((shifted >= filters.floors[rows, None]).sum(axis=1), lengths)
    fewest = np.minimum((masses < (top_ps * low)[:, None]).sum(axis=1) + 1, by_floor)
    most = (masses < (top_ps * high)[:, None]).sum(axis=1) + 1
    goes_on = (most > lengths) & (by_floor == lengths) & ~shortlist.is_whole[rows]
    most = np.minimum(most, by_floor)

    row = np.arange(len(rows))
    ends = np.maximum(lengths - 1, 0)
    # What is kept beyond the last candidate is at most what top-p may still lack, or all there is. Each of these logits
    # lies below the last candidate, so a temperature below 1 shrinks it by at least as much as that one.
    missing = np.minimum(high, top_ps * high + np.exp(shifted[row, ends])) - masses[:, -1]
    cooling = 1.0 / np.clip(temperatures, _LEAST_TEMPERATURE, 1.0) - 1.0
    beyond = missing * np.exp(np.maximum(shifted[row, ends], -745.0) * cooling)
    least = draws[rows] * cooled[row, np.maximum(fewest - 1, 0)] * (1 - _ROUNDING)
    greatest = draws[rows] * (cooled[row, np.maximum(most - 1, 0)] + np.where(goes_on, beyond, 0.0)) * (1 + _ROUNDING)
    places = (cooled <= least[:, None]).sum(axis=1)
    is_certain = places == (cooled <= greatest[:, None]).sum(axis=1)
    is_cool = (temperatures >= _LEAST_TEMPERATURE) & (temperatures <= 1.0)
    is_certain &= (lengths > 0) & (places < fewest) & (is_cool | ~goes_on)
    tokens = ids_of(keys[row, np.minimum(places, ends)])
    return np.where(is_certain, tokens, _UNDECIDED)
