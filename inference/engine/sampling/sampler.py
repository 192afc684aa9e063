"""Chooses one token per row of logits, exactly, in numpy.

Owns the way of a step through the parts: `logprobs` of the rows that ask for them, `logits_processors`, the candidates
(`top_k`), `filters`, the draw. Knows nothing of sequences, slots or a model; the engine calls it on its thread once
per step, and large steps are shared between threads by rows. Each row is treated by its own plan alone: what stands in
other rows never changes a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from inference.engine.constraint import Constraint, TokenMask
from inference.engine.logits import Excerpt, Floats, Ids, Keys, LogitRows
from inference.engine.request import Logprobs
from inference.engine.sampling.excerpt import BAD_ROW, ExcerptSampler
from inference.engine.sampling.filters import Filters, draw
from inference.engine.sampling.logits_processors import apply_mask, edit
from inference.engine.sampling.logprobs import RawRow
from inference.engine.sampling.plan import SamplerPlan, uniforms
from inference.engine.sampling.token_history import TokenHistory
from inference.engine.sampling.top_k import Scan, Shortlister, Wanted, ids_of, logits_of
from inference.engine.sampling.top_p import draw_by_bounds

NOTHING_ALLOWED = -2  # in place of a token: the model's numbers are sound, but mask and biases forbid every token

_SUM_BLOCK = 256
_ROWS_PER_THREAD = 4  # fewer rows than this do not repay waking a thread


Found = TypeVar("Found")


class SampledRow(Protocol):
    """Whose token a row of logits decides."""

    @property
    def plan(self) -> SamplerPlan: ...

    @property
    def history(self) -> TokenHistory: ...

    @property
    def constraint(self) -> Constraint | None: ...


@dataclass(frozen=True)
class Sampled:
    """One token id per row, BAD_ROW or NOTHING_ALLOWED; and for rows that asked for them, by index, logprobs.

    Logprobs are those of the row as the model gave it. A row without a token has none.
    """

    tokens: list[int]
    logprobs: dict[int, Logprobs]


@dataclass(frozen=True)
class _Part:
    """What one thread found in its rows. All is indexed from the part's first row.

    `forbidden`: the largest logit that was taken out of the row, -inf if none was. `drawn`: rows that have no
    candidates since their token was certain, or drawn from the whole vocabulary.
    """

    scan: Scan
    forbidden: Floats
    drawn: dict[int, int]
    raw: dict[int, RawRow]


class Sampler:
    """Samples rows of `vocab_size` logits; with `num_threads` above 1 large steps are shared between threads.

    `dry_breakers` are the tokens that DRY does not look past, `end_tokens` those that end an answer.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        num_threads: int = 1,
        dry_breakers: frozenset[int] = frozenset(),
        end_tokens: frozenset[int] = frozenset(),
    ) -> None:
        assert min(vocab_size, num_threads) > 0, (vocab_size, num_threads)
        self.vocab_size = vocab_size
        self._num_threads = num_threads
        self._dry_breakers = dry_breakers
        self._end_tokens = np.array(sorted(t for t in end_tokens if t < vocab_size), np.int64)
        self._shortlister = Shortlister(vocab_size)
        self._excerpts = ExcerptSampler(self._end_tokens)
        self._pool = ThreadPoolExecutor(num_threads - 1, "sampler") if num_threads > 1 else None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def sample(self, logits: LogitRows, rows: Sequence[SampledRow]) -> Sampled:
        """Choose for each row. `logits` has shape (len(rows), vocab_size) and is written into."""
        assert logits.shape == (len(rows), self.vocab_size), (logits.shape, len(rows), self.vocab_size)
        if not rows:
            return Sampled([], {})
        plans = [row.plan for row in rows]
        filters = Filters.of(plans)
        draws = uniforms(plans, [row.history.num_generated for row in rows])
        # A constraint belongs to the engine's thread.
        masks = [_mask_of(row) for row in rows]
        num_parts = max(1, min(self._num_threads, len(rows) // _ROWS_PER_THREAD))
        bounds = [len(rows) * part // num_parts for part in range(num_parts + 1)]

        def scan(part: int) -> _Part:
            here = slice(bounds[part], bounds[part + 1])
            return self._scan(logits[here], rows[here], masks[here], filters.wanted.part(here), draws[here])

        parts = self._share(scan, range(num_parts))
        tokens = self._draw_all(logits, parts, filters, draws)
        logprobs = {
            start + i: raw.of(tokens[start + i])
            for start, part in zip(bounds, parts, strict=False)
            for i, raw in part.raw.items()
            if tokens[start + i] >= 0
        }
        return Sampled(tokens, logprobs)

    def sample_excerpt(self, excerpt: Excerpt, rows: Sequence[SampledRow]) -> Sampled:
        """Choose for rows of which the device handed over an excerpt; `UNDECIDED` where that is not enough."""
        plans = [row.plan for row in rows]
        return Sampled(self._excerpts.sample(excerpt, plans, [row.history.num_generated for row in rows]), {})

    def distribution(self, logits: LogitRows, row: SampledRow) -> tuple[Ids, Floats] | None:
        """The ids that one row (shape (vocab_size,), written into) may yield and their probabilities.

        None when it yields no token.
        """
        filters = Filters.of([row.plan])
        masks = [_mask_of(row)]
        block = logits.reshape(1, -1)
        self._edit(block, [row], masks)
        found = self._shortlister.collect([self._shortlister.scan(block, filters.wanted)])
        if found.is_open[0] or found.is_wide[0]:
            self._shortlister.settle(block[0], filters.wanted, found, 0)
        keys = found.candidates(0)
        if not len(keys):
            return None
        weights = filters.weights(*_table(keys[None], np.array([len(keys)]), [0]), found.totals)[0]
        ids = ids_of(keys)
        # In the order of the draw: by falling logit, but by id where every token may be drawn.
        order = ids.argsort() if row.plan.is_unfiltered else np.arange(len(ids))
        order = order[weights[order] > 0]
        return ids[order], weights[order] / weights.sum()

    def _share(self, work: Callable[[int], Found], items: Sequence[int]) -> list[Found]:
        """`work` of every item, by all threads."""
        if self._pool is None:
            return [work(item) for item in items]
        others = [self._pool.submit(work, item) for item in items[1:]]
        return [work(items[0]), *(other.result() for other in others)]  # this thread works too

    def _scan(
        self,
        block: LogitRows,
        rows: Sequence[SampledRow],
        masks: Sequence[TokenMask | None],
        wanted: Wanted,
        draws: Floats,
    ) -> _Part:
        raw = {
            i: self._weigh_raw(block[i], row.plan, is_masked=masks[i] is not None)
            for i, row in enumerate(rows)
            if row.plan.num_logprobs is not None
        }
        forbidden = self._edit(block, rows, masks)
        drawn: dict[int, int] = {}
        for i, row in enumerate(rows):
            if wanted.counts[i] == 1:
                drawn[i] = _largest(block[i], forbidden[i])
            elif row.plan.is_unfiltered:
                drawn[i] = _draw_unfiltered(block[i], row.plan.temperature, float(draws[i]), forbidden[i])
        if len(drawn) == len(rows):
            return _Part(Scan.skipped(len(rows)), forbidden, drawn, raw)
        if drawn:
            counts = wanted.counts.copy()
            counts[list(drawn)] = 1  # what is found for these goes unused
            wanted = replace(wanted, counts=counts)
        return _Part(self._shortlister.scan(block, wanted), forbidden, drawn, raw)

    def _draw_all(self, logits: LogitRows, parts: Sequence[_Part], filters: Filters, draws: Floats) -> list[int]:
        """The tokens of all rows: those with few candidates together, as one table, the others one by one."""
        if sum(len(part.drawn) for part in parts) == len(draws):
            return [part.drawn[i] for part in parts for i in range(len(part.drawn))]
        found = self._shortlister.collect([part.scan for part in parts])
        forbidden = np.concatenate([part.forbidden for part in parts])
        tokens = np.where((found.largest == -np.inf) & np.isfinite(forbidden), NOTHING_ALLOWED, BAD_ROW)
        is_done = np.zeros(len(tokens), bool)
        start = 0
        for part in parts:
            for i, token in part.drawn.items():
                tokens[start + i], is_done[start + i] = token, True
            start += len(part.forbidden)
        open_rows = np.flatnonzero(found.is_open & ~is_done)
        if len(open_rows):
            by_bounds = draw_by_bounds(found, open_rows, filters, draws)
            decided = by_bounds >= 0
            tokens[open_rows[decided]], is_done[open_rows[decided]] = by_bounds[decided], True
        unsettled = np.flatnonzero((found.is_open | found.is_wide) & ~is_done)
        if len(unsettled):
            self._share(lambda i: self._shortlister.settle(logits[i], filters.wanted, found, i), unsettled.tolist())
        rows = np.flatnonzero((found.lengths > 0) & ~is_done)
        if len(rows):
            keys = found.keys[rows]
            weights = filters.weights(*_table(keys, found.lengths[rows], rows), found.totals[rows])
            tokens[rows] = ids_of(keys[np.arange(len(rows)), draw(weights, draws[rows])])
        for i, alone in found.wide.items():
            row = np.array([i])
            weights = filters.weights(*_table(alone[None], np.array([len(alone)]), row), found.totals[row])
            tokens[i] = ids_of(alone[draw(weights, draws[row])])[0]
        chosen: list[int] = tokens.tolist()
        return chosen

    def _weigh_raw(self, row: npt.NDArray[np.float32], plan: SamplerPlan, *, is_masked: bool) -> RawRow:
        num_top = plan.num_logprobs or 0
        wanted = Wanted(np.array([max(1, num_top)]), np.array([-np.inf]), np.ones(1))
        found = self._shortlister.collect([self._shortlister.scan(row[None], wanted)])
        if found.is_wide[0]:
            self._shortlister.settle(row, wanted, found, 0)
        is_edited = is_masked or plan.edits_logits or plan.ignores_end
        return RawRow.weigh(row.copy() if is_edited else row, found.candidates(0), num_top)

    def _edit(self, block: LogitRows, rows: Sequence[SampledRow], masks: Sequence[TokenMask | None]) -> Floats:
        forbidden = np.full(len(rows), -np.inf)
        for i, mask in enumerate(masks):
            if mask is not None:
                forbidden[i] = apply_mask(block[i], mask)
        endless = [i for i, row in enumerate(rows) if row.plan.ignores_end]
        if endless and len(self._end_tokens):
            places = np.ix_(np.array(endless), self._end_tokens)
            before = block[places]
            with np.errstate(invalid="ignore"):  # +inf forbidden is NaN: a bad row
                block[places] = before + np.float32(-np.inf)
            forbidden[endless] = np.maximum(forbidden[endless], before.max(axis=1))
        for i, row in enumerate(rows):
            if row.plan.edits_logits:
                forbidden[i] = max(forbidden[i], edit(block[i], row.plan, row.history, self._dry_breakers))
        return forbidden


def _mask_of(row: SampledRow) -> TokenMask | None:
    return None if row.constraint is None or row.constraint.is_open else row.constraint.mask()


def _table(keys: Keys, lengths: Ids, rows: Sequence[int] | Ids) -> tuple[Ids, Floats, Ids]:
    """Rows, logits below each row's largest, and lengths, as `Filters.weights` takes them."""
    shifted = logits_of(keys)
    shifted -= shifted[:, :1].copy()
    shifted[np.arange(keys.shape[1]) >= lengths[:, None]] = -np.inf
    return np.asarray(rows), shifted, lengths


def _largest(row: npt.NDArray[np.float32], forbidden: float) -> int:
    token = int(row.argmax())  # NaN counts as largest, so it shows in the check
    return token if np.isfinite(row[token]) else _no_token(float(row[token]), forbidden)


def _no_token(largest: float, forbidden: float) -> int:
    return NOTHING_ALLOWED if largest == -np.inf and np.isfinite(forbidden) else BAD_ROW


def _draw_unfiltered(row: npt.NDArray[np.float32], temperature: float, uniform: float, forbidden: float) -> int:
    """Draw by temperature alone, ids in their own order: weights in float32, their sums by blocks in float64."""
    largest = row.max()
    if not np.isfinite(largest):
        return _no_token(float(largest), forbidden)
    weights = row - largest
    weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    starts = np.arange(0, len(weights), _SUM_BLOCK)
    sums = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    goal = uniform * sums[-1]
    block = min(int(sums.searchsorted(goal, side="right")), int(sums.searchsorted(sums[-1])))
    part = weights[starts[block] : starts[block] + _SUM_BLOCK].astype(np.float64)
    masses = part.cumsum() + (sums[block - 1] if block else 0.0)
    place = min(int(masses.searchsorted(goal, side="right")), int(masses.searchsorted(masses[-1])))
    return int(starts[block]) + place
