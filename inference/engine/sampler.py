"""Chooses one token per row of logits, exactly, in numpy.

Owns the arithmetic of penalties, top-k, top-p, min-p, temperature and the draw. Knows nothing of sequences, slots or a
model; the engine calls it on its thread once per step. Each row is treated by its own plan alone: what stands in other
rows never changes a choice.

Exact top-k without sorting the vocabulary: view a row as 32 x (vocab/32) and take the maximum of every column. At least
k logits reach the k-th largest of these maxima, so no smaller logit is among the k largest; one comparison then finds
the few that remain. Equal logits are ordered by id, so a choice never depends on how a partition happened to fall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inference.engine.backend import LogitRows
from inference.engine.history import TokenHistory
from inference.engine.sampling import REPETITION_WINDOW_TOKENS, SamplerPlan

BAD_ROW = -1  # in place of a token: the row has no finite maximum (NaN, +inf, or nothing but -inf)

_FOLD = 32  # rows of the column view; 64 gathers no better and 16 leaves a larger partition (measured, 49k and 128k)
_FIRST_GUESS = 128  # open-ended top-p looks at so many of the largest logits first, then at 16 times as many
_SMALL_SORT = 256
_SUM_BLOCK = 256
_MIN_FLOAT32_TEMPERATURE = 1e-3  # a smaller divisor turns small differences of logits into infinities in float32
_BLOCK_WIDTH = 512  # rows with at most so many candidates are finished together
_ROWS_PER_THREAD = 4  # fewer rows than this do not repay waking a thread

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class SampledRow(Protocol):
    """Whose token a row of logits decides."""

    @property
    def plan(self) -> SamplerPlan: ...

    @property
    def history(self) -> TokenHistory: ...


@dataclass(frozen=True)
class _Candidates:
    """All ids that the filters can leave: by falling logit, or by id where no filter is on.

    `total_mass` is the sum of exp(logit - largest) that top-p measures against; None: the candidates' own sum.
    """

    ids: Ids
    logits: Floats
    largest: float
    total_mass: float | None


class Sampler:
    """Samples rows of `vocab_size` logits; with `num_threads` above 1 large steps are shared between threads."""

    def __init__(self, vocab_size: int, *, num_threads: int = 1) -> None:
        assert min(vocab_size, num_threads) > 0, (vocab_size, num_threads)
        self.vocab_size = vocab_size
        self._num_columns = vocab_size // _FOLD
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1, "sampler") if num_threads > 1 else None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def sample(self, logits: LogitRows, rows: Sequence[SampledRow]) -> list[int]:
        """One token id per row, or BAD_ROW. `logits` has shape (len(rows), vocab_size) and is written into."""
        assert logits.shape == (len(rows), self.vocab_size), (logits.shape, len(rows), self.vocab_size)
        found = self._choose_all(logits, rows)
        chosen = [BAD_ROW] * len(rows)
        block: list[int] = []
        for index, candidates in enumerate(found):
            if isinstance(candidates, int):
                chosen[index] = candidates
            elif len(candidates.ids) <= _BLOCK_WIDTH:
                block.append(index)
            else:
                chosen[index] = _draw([candidates], [rows[index]])[0]
        if block:
            drawn = _draw([f for f in (found[i] for i in block) if not isinstance(f, int)], [rows[i] for i in block])
            for index, token in zip(block, drawn, strict=True):
                chosen[index] = token
        return chosen

    def distribution(self, logits: LogitRows, row: SampledRow) -> tuple[Ids, Floats] | None:
        """The ids that one row (shape (vocab_size,), written into) may yield and their probabilities; None if bad."""
        found = self._choose(logits, row)
        if isinstance(found, int):
            return None if found == BAD_ROW else (np.array([found], np.int64), np.ones(1))
        weights = _weights([found], [row.plan])[0]
        kept = weights > 0
        return found.ids[kept], weights[kept] / weights.sum()

    def _choose_all(self, logits: LogitRows, rows: Sequence[SampledRow]) -> list[_Candidates | int]:
        num_parts = min(self._num_threads, len(rows) // _ROWS_PER_THREAD)
        if self._pool is None or num_parts < 2:
            return [self._settle(logits[i], row) for i, row in enumerate(rows)]
        bounds = [len(rows) * part // num_parts for part in range(num_parts + 1)]

        def choose_part(part: int) -> list[_Candidates | int]:
            return [self._settle(logits[i], rows[i]) for i in range(bounds[part], bounds[part + 1])]

        others = [self._pool.submit(choose_part, part) for part in range(1, num_parts)]
        found = choose_part(0)  # this thread works too
        for other in others:
            found += other.result()
        return found

    def _settle(self, logits: npt.NDArray[np.float32], row: SampledRow) -> _Candidates | int:
        """As `_choose`, but a row without any filter is drawn at once: its candidates would be the vocabulary."""
        plan = row.plan
        if plan.top_k or plan.top_p < 1.0 or plan.min_p > 0.0 or plan.temperature < _MIN_FLOAT32_TEMPERATURE:
            return self._choose(logits, row)
        _penalise(logits, plan, row.history)
        largest = float(logits.max())
        if not math.isfinite(largest):
            return BAD_ROW
        return _draw_unfiltered(logits, largest, plan.temperature, plan.uniform(row.history.num_generated))

    def _choose(self, logits: npt.NDArray[np.float32], row: SampledRow) -> _Candidates | int:
        """Candidates of one row, or its token where that is already certain, or BAD_ROW."""
        plan = row.plan
        _penalise(logits, plan, row.history)
        if plan.is_greedy or plan.top_k == 1:
            token = int(logits.argmax())  # NaN counts as largest, so it shows in the check
            return token if math.isfinite(logits[token]) else BAD_ROW
        if 0 < plan.top_k < self.vocab_size:
            return self._largest(logits, plan.top_k, None)
        largest = float(logits.max())
        if not math.isfinite(largest):
            return BAD_ROW
        total_mass = _mass(logits, largest) if plan.top_p < 1.0 else None
        if plan.min_p > 0.0:
            floor = largest + math.log(plan.min_p)
            # float32 may round the floor up past a logit that belongs; the exact cut follows in float64.
            low = np.nextafter(np.float32(floor), np.float32(-np.inf))
            return _sorted(logits, (logits >= low).nonzero()[0], total_mass)
        if total_mass is None:
            return _Candidates(np.arange(self.vocab_size), logits.astype(np.float64), largest, None)
        for count in (_FIRST_GUESS, 16 * _FIRST_GUESS):
            if count < self._num_columns:
                found = self._largest(logits, count, total_mass)
                if isinstance(found, int) or np.exp(found.logits - largest).sum() >= plan.top_p * total_mass:
                    return found
        return _sorted(logits, np.arange(self.vocab_size), total_mass)

    def _largest(self, logits: npt.NDArray[np.float32], count: int, total_mass: float | None) -> _Candidates | int:
        """The `count` largest logits (among equals the lowest ids), or BAD_ROW."""
        if count < self._num_columns:
            folded = logits[: self._num_columns * _FOLD].reshape(_FOLD, self._num_columns)
            maxima = folded.max(axis=0)
            maxima.partition(self._num_columns - count)
            floor = maxima[self._num_columns - count]
            rest = logits[self._num_columns * _FOLD :]
            # A partition puts NaN last, where it may hide above the floor; the maximum shows it.
            largest = _max_of(maxima[self._num_columns - count :], rest)
        else:
            floor = np.partition(logits, self.vocab_size - count)[self.vocab_size - count]
            largest = float(logits.max())
        if not math.isfinite(largest):
            return BAD_ROW
        found = _sorted(logits, (logits >= floor).nonzero()[0], total_mass)
        return _Candidates(found.ids[:count], found.logits[:count], found.largest, total_mass)


def _max_of(*parts: npt.NDArray[np.float32]) -> float:
    """The largest value of all parts; NaN if any holds NaN."""
    return float(np.maximum.reduce([part.max() for part in parts if len(part)]))


def _penalise(logits: npt.NDArray[np.float32], plan: SamplerPlan, history: TokenHistory) -> None:
    if plan.repetition_penalty != 1.0:
        ids = np.unique(history.last(REPETITION_WINDOW_TOKENS))
        values = logits[ids]
        logits[ids] = np.where(values > 0, values / plan.repetition_penalty, values * plan.repetition_penalty)
    if plan.counts_generated:
        counted, counts = history.generated_counts()
        logits[counted] -= counts * plan.frequency_penalty + plan.presence_penalty


def _mass(logits: npt.NDArray[np.float32], largest: float) -> float:
    """Sum of exp(logit - largest) over the row; float32 with pairwise sums, off by about 1e-7 of itself."""
    shifted = logits - np.float32(largest)
    np.exp(shifted, out=shifted)
    return float(shifted.sum())


def _sorted(logits: npt.NDArray[np.float32], ids: Ids, total_mass: float | None) -> _Candidates:
    """`ids` (rising) as candidates by falling logit, equal ones by rising id."""
    values = logits[ids]
    if len(ids) <= _SMALL_SORT:
        ids = ids[np.argsort(-values, kind="stable")]
    else:
        # One integer key per candidate, logit (falling) above id (rising): numpy sorts these ten times as fast as it
        # sorts indirectly. Adding 0 makes -0 equal to +0.
        bits = (values + np.float32(0)).view(np.uint32)
        rising = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
        keys = ((~rising).astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
        keys.sort()
        ids = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    falling = logits[ids].astype(np.float64)
    return _Candidates(ids, falling, float(falling[0]), total_mass)


def _weights(found: Sequence[_Candidates], plans: Sequence[SamplerPlan]) -> Floats:
    """exp((logit - largest) / temperature) of what the filters leave, else 0; shape (rows, most candidates).

    All sums run in order of the candidates, so that a row's numbers do not depend on how wide its neighbours made the
    block.
    """
    lengths = np.array([len(f.ids) for f in found])
    shifted = np.full((len(found), int(lengths.max())), -np.inf)
    for i, f in enumerate(found):
        shifted[i, : lengths[i]] = f.logits - f.largest
    num_kept = lengths
    if any(plan.top_p < 1.0 for plan in plans):
        sums = np.exp(shifted).cumsum(axis=1)
        totals = np.array([sums[i, -1] if f.total_mass is None else f.total_mass for i, f in enumerate(found)])
        goals = np.array([plan.top_p if plan.top_p < 1.0 else np.inf for plan in plans]) * totals
        num_kept = np.minimum(num_kept, (sums < goals[:, None]).sum(axis=1) + 1)
    if any(plan.min_p > 0.0 for plan in plans):
        floors = np.array([math.log(plan.min_p) if plan.min_p > 0.0 else -np.inf for plan in plans])
        num_kept = np.minimum(num_kept, (shifted >= floors[:, None]).sum(axis=1))
    with np.errstate(over="ignore"):  # by a temperature next to nothing: -inf is what is meant
        weights: Floats = np.exp(shifted / np.array([plan.temperature for plan in plans])[:, None])
    weights[np.arange(weights.shape[1]) >= num_kept[:, None]] = 0.0
    return weights


def _draw(found: Sequence[_Candidates], rows: Sequence[SampledRow]) -> list[int]:
    masses = _weights(found, [row.plan for row in rows]).cumsum(axis=1)
    totals = masses[:, -1]
    draws = np.array([row.plan.uniform(row.history.num_generated) for row in rows])
    places = (masses <= (draws * totals)[:, None]).sum(axis=1)
    # Rounding may lift draw * total to the total itself: then the last candidate with any weight is meant.
    last = (masses < totals[:, None]).sum(axis=1)
    return [int(f.ids[place]) for f, place in zip(found, np.minimum(places, last).tolist(), strict=True)]


def _draw_unfiltered(logits: npt.NDArray[np.float32], largest: float, temperature: float, draw: float) -> int:
    """Draw by temperature alone, ids in their own order: weights in float32, their sums by blocks in float64."""
    weights = logits - np.float32(largest)
    weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    starts = np.arange(0, len(weights), _SUM_BLOCK)
    sums = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    goal = draw * sums[-1]
    block = min(int(sums.searchsorted(goal, side="right")), int(sums.searchsorted(sums[-1])))
    part = weights[starts[block] : starts[block] + _SUM_BLOCK].astype(np.float64)
    masses = part.cumsum() + (sums[block - 1] if block else 0.0)
    place = min(int(masses.searchsorted(goal, side="right")), int(masses.searchsorted(masses[-1])))
    return int(starts[block]) + place
