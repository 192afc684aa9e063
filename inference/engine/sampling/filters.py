"""What the filters leave of a row's candidates, and the draw among them.

Works in float64 on candidates by falling logit, many rows as one table. All sums run in the order of the candidates, so
that a row's numbers do not depend on how wide its neighbours made the table. Pure; the sampler calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from inference.engine.logits import Floats, Ids
from inference.engine.sampling.plan import SamplerPlan
from inference.engine.sampling.top_k import Wanted


@dataclass(frozen=True)
class Filters:
    """The numbers of many plans as columns, each of shape (rows,)."""

    typical_ps: Floats
    top_ps: Floats
    floors: Floats  # log(min_p)
    temperatures: Floats
    wanted: Wanted

    @classmethod
    def of(cls, plans: Sequence[SamplerPlan]) -> Filters:
        table = np.array([plan.numbers for plan in plans]).reshape(len(plans), 7).T
        counts = table[0].astype(np.int64)
        return cls(table[1], table[2], table[3], table[4], Wanted(counts, table[5], table[6]))

    def part(self, rows: slice) -> Filters:
        return Filters(
            self.typical_ps[rows], self.top_ps[rows], self.floors[rows], self.temperatures[rows], self.wanted.part(rows)
        )

    # Most steps need few of the filters, and to ask that of arrays each time costs as much as to skip them saves.
    @cached_property
    def has_typical(self) -> bool:
        return bool((self.typical_ps < 1.0).any())

    @cached_property
    def has_top_p(self) -> bool:
        return bool((self.top_ps < 1.0).any())

    @cached_property
    def has_floor(self) -> bool:
        return bool((self.floors > -np.inf).any())

    @cached_property
    def is_mild(self) -> bool:
        """Whether no temperature is so low that a weight could overflow on the way to 0."""
        return bool((self.temperatures >= 1e-3).all())

    def weights(self, rows: Ids | slice, shifted: Floats, lengths: Ids, totals: Floats) -> Floats:
        """exp((logit - largest) / temperature) of what the filters leave, else 0; shape as `shifted`.

        `shifted`: logit - largest by falling logit, -inf after the row's `lengths` candidates. `totals`: what top-p
        measures against; NaN for the sum of the candidates. `rows` says which of the plans these are.
        """
        top_ps, floors, temperatures = self.top_ps[rows], self.floors[rows], self.temperatures[rows]
        places = np.arange(shifted.shape[1])
        kept = places < lengths[:, None]
        if self.has_typical:
            typical_ps = self.typical_ps[rows]
            for i in np.flatnonzero(typical_ps < 1.0):
                kept[i, : lengths[i]] = _is_typical(shifted[i, : lengths[i]], float(typical_ps[i]))
            first = shifted[np.arange(len(lengths)), kept.argmax(axis=1)]  # the largest may be gone
            floors, temperate = floors + first, shifted - first[:, None]
        else:
            temperate = shifted
        if self.has_top_p:
            masses = np.where(kept, np.exp(shifted), 0.0).cumsum(axis=1)
            goals = np.where(top_ps < 1.0, top_ps, np.inf) * np.where(np.isnan(totals), masses[:, -1], totals)
            kept &= places <= (masses < goals[:, None]).sum(axis=1)[:, None]
        if self.has_floor:
            kept &= shifted >= floors[:, None]
        if self.is_mild:
            weights: Floats = np.exp(temperate / temperatures[:, None])
        else:
            with np.errstate(over="ignore"):  # by a temperature next to nothing: -inf is what is meant
                weights = np.exp(temperate / temperatures[:, None])
        weights[~kept] = 0.0
        return weights


def draw(weights: Floats, uniforms: Floats) -> Ids:
    """The place of each row's draw among its weights."""
    masses = weights.cumsum(axis=1)
    totals = masses[:, -1]
    places = (masses <= (uniforms * totals)[:, None]).sum(axis=1)
    # Rounding may lift draw * total to the total itself: then the last candidate with any weight is meant.
    last = (masses < totals[:, None]).sum(axis=1)
    chosen: Ids = np.minimum(places, last)
    return chosen


def _is_typical(shifted: Floats, typical_p: float) -> npt.NDArray[np.bool_]:
    """Which candidates are locally typical: the fewest whose surprise is nearest to the entropy, above `typical_p`."""
    surprise = np.log(np.exp(shifted).cumsum()[-1]) - shifted
    probabilities = np.exp(-surprise)
    entropy = (probabilities * surprise).cumsum()[-1]
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    num_kept = int((probabilities[order].cumsum() <= typical_p).sum()) + 1
    kept = np.zeros(len(shifted), bool)
    kept[order[:num_kept]] = True
    return kept
