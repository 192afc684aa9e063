"""The few largest logits of many rows at once: exactly, without sorting a vocabulary.

Knows rows of numbers and how many of each row are wanted; nothing of plans, penalties or draws. The sampler calls it,
each of its threads for rows of its own.

A row is viewed as 32 rows of columns and the maximum of every column taken: the one pass over all the memory. The same
again over these maxima, eight to a group. At least k logits reach the k-th largest group maximum, so no smaller logit
is among the k largest: it is a floor. Only columns whose maximum reaches the floor can hold a logit that does, about k
of them, and their few logits are gathered, filtered and sorted. Equal logits are ordered by id, so nothing depends on
how a partition happened to fall. All rows of a call go through each step together, because a numpy call on a small
array costs more than its work, and because threads can only overlap inside the calls.

Open-ended top-p measures against the mass of the whole row. The column maxima bound it from both sides, which most
often decides the draw (`top_p`); only where it does not is the row summed, and more candidates looked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.engine.logits import Floats, Floats32, Ids, Keys, LogitRows

_FOLD = 32  # fewer rows of columns make more maxima to look through, more gather too much (measured, 49k and 128k)
_GROUP = 8
_MIN_COLUMNS = 64  # of a vocabulary worth folding
_FIRST_GUESS = 128  # open-ended top-p looks at no more of the largest logits first
_MAX_COLUMNS = 512  # a row in which more columns reach the floor is done alone, and so is one with more candidates
_MAX_WIDTH = 1024
_OPEN_SHARE = 0.0005  # of a row's mass may be left to bounds; more would seldom let them decide
_MAX_TRIMS = 8
_WORTH_TRIMMING = 0.8  # a round that leaves more than this is the last
_ROUNDING = 1e-6  # of float32 sums, several times over
_BOUND_MARGIN = 1e-5  # float32 sums stray by about 1e-7 of themselves

_LOWEST = float(np.finfo(np.float32).min)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_NO_KEY = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Wanted:
    """Which logits of each row. All arrays have shape (rows,).

    `counts`: how many of the largest; 0 for as many as the row's other numbers ask for. Only there `floors` (at most 0)
    says how far below the largest a logit may lie, and `top_ps` below 1 that no more are needed than hold this part of
    the whole row's mass.
    """

    counts: Ids
    floors: Floats
    top_ps: Floats

    def part(self, rows: slice) -> Wanted:
        return Wanted(self.counts[rows], self.floors[rows], self.top_ps[rows])


@dataclass(frozen=True)
class Scan:
    """What one block of rows yielded: keys with their rows, rows rising, and for each row what `Shortlist` says of it.

    `counts`: how many of the largest keys are meant; 0 for all.
    """

    rows: Ids
    keys: Keys
    largest: Floats
    counts: Ids
    is_open: npt.NDArray[np.bool_]
    is_wide: npt.NDArray[np.bool_]
    low: Floats
    high: Floats

    @classmethod
    def skipped(cls, num_rows: int) -> Scan:
        """Of a block that nobody needs candidates of."""
        none, unknown = np.zeros(0, np.int64), np.full(num_rows, np.nan)
        no = np.zeros(num_rows, bool)
        return cls(none, none.astype(np.uint64), unknown, np.zeros(num_rows, np.int64), no, no, unknown, unknown)


@dataclass(frozen=True)
class Shortlist:
    """Candidates of some rows as sorted keys, by falling logit, equal ones by rising id; shape (rows, widest).

    `lengths` of them count. `largest` is not finite for a bad row, which has no candidates. `wide` holds the rows with
    too many candidates for the table, by index: keys of the row alone.

    `totals` is the mass that top-p measures against, sum of exp(logit - largest) over the row; NaN: the candidates'
    own. Rows in `is_open` have no such total yet, only bounds `low` and `high`, and perhaps too few candidates, unless
    `is_whole`: either the draw is decided without, or `Shortlister.settle` must follow. It must for those in `is_wide`,
    which have none in the table.
    """

    keys: Keys
    lengths: Ids
    largest: Floats
    totals: Floats
    wide: dict[int, Keys]
    is_open: npt.NDArray[np.bool_]
    is_wide: npt.NDArray[np.bool_]
    is_whole: npt.NDArray[np.bool_]
    low: Floats
    high: Floats

    def replace(self, row: int, keys: Keys) -> None:
        """Give one row other candidates than those in the table."""
        self.wide[row] = keys
        self.lengths[row] = 0

    def candidates(self, row: int) -> Keys:
        alone = self.wide.get(row)
        return self.keys[row, : self.lengths[row]] if alone is None else alone


def ids_of(keys: Keys) -> Ids:
    return (keys & _LOW_WORD).astype(np.int64)


def logits_of(keys: Keys) -> Floats:
    bits = ~(keys >> np.uint64(32)).astype(np.uint32)
    restored = np.where(bits >> 31, bits & np.uint32(0x7FFFFFFF), ~bits).astype(np.uint32)
    return restored.view(np.float32).astype(np.float64)


def keys_of(logits: Floats32, ids: Ids) -> Keys:
    """One integer for each candidate: logit (falling) above id (rising). Numpy sorts these fastest."""
    bits = (logits + np.float32(0)).view(np.uint32)  # adding 0 makes -0 equal to +0
    rising = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    keys: Keys = ((~rising).astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
    return keys


def table_of(keys: Keys, rows: Ids, lengths: Ids) -> Keys:
    """Keys of many rows, `lengths` of each and rows rising, as one table of sorted rows; what is no key sorts last."""
    table = np.full((len(lengths), max(1, int(lengths.max()))), _NO_KEY)
    table[rows, np.arange(len(rows)) - (lengths.cumsum() - lengths)[rows]] = keys
    table.sort(axis=1)
    return table


def mass_of(logits: Floats32, largest: float) -> float:
    """Sum of exp(logit - largest) over the row; in float32, off by about 1e-7 of itself."""
    weights = logits - np.float32(largest)
    np.exp(weights, out=weights)
    return sum_of(weights)


def sum_of(weights: Floats32) -> float:
    """Sum in float32 by columns, which numpy vectorises, then in float64."""
    num_columns = len(weights) // _FOLD
    folded = weights[: num_columns * _FOLD].reshape(_FOLD, num_columns)
    return float(folded.sum(axis=0).sum(dtype=np.float64) + weights[num_columns * _FOLD :].sum(dtype=np.float64))


class Shortlister:
    """Finds shortlists in rows of `vocab_size` logits. Holds nothing that changes; any thread."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._num_columns = vocab_size // _FOLD
        self._num_groups = self._num_columns // _GROUP
        self._num_folded = self._num_columns * _FOLD
        self._offsets = np.arange(_FOLD) * self._num_columns
        self._is_foldable = self._num_columns >= _MIN_COLUMNS

    def scan(self, block: LogitRows, wanted: Wanted) -> Scan:
        """What may be among the wanted logits of every row of `block`, shape (rows, vocab_size), contiguous.

        Nearly all the work, and nearly all of it in calls that release the interpreter.
        """
        if not self._is_foldable:
            return self._scan_whole(block, wanted)
        num_rows, num_columns = len(block), self._num_columns
        maxima = block[:, : self._num_folded].reshape(num_rows, _FOLD, num_columns).max(axis=1)
        rest = block[:, self._num_folded :]
        groups = maxima[:, : self._num_groups * _GROUP].reshape(num_rows, _GROUP, self._num_groups).max(axis=1)
        groups.sort(axis=1)  # puts NaN last, so that it shows as the largest
        largest = groups[:, -1]
        for others in (maxima[:, self._num_groups * _GROUP :], rest):
            if others.shape[1]:
                largest = np.maximum(largest, others.max(axis=1))
        is_good = np.isfinite(largest)

        is_open = (wanted.counts == 0) & (wanted.top_ps < 1.0) & is_good
        open_rows = np.flatnonzero(is_open)
        counts = wanted.counts
        if len(open_rows):
            open_maxima = maxima if len(open_rows) == num_rows else maxima[open_rows]
            weights = np.exp(open_maxima - largest[open_rows, None])
            counts = counts.copy()
            counts[open_rows] = self._guess(weights, groups[open_rows], largest[open_rows], wanted.top_ps[open_rows])
        by_group = (counts > 0) & (counts * 2 <= self._num_groups)
        floors = groups[np.arange(num_rows), np.where(by_group, self._num_groups - counts, 0)]
        for i in np.flatnonzero(~by_group):
            has_enough = 0 < counts[i] <= num_columns
            place = num_columns - counts[i] if has_enough else 0
            floors[i] = np.partition(maxima[i], place)[place] if has_enough else -np.inf
        is_uncounted = wanted.counts == 0
        if is_uncounted.any():
            with np.errstate(invalid="ignore"):  # of a bad row
                limits = np.nextafter((largest + wanted.floors).astype(np.float32), np.float32(-np.inf))
            floors = np.where(is_uncounted, np.fmax(floors, limits), floors)
        floors = np.where(is_good, np.fmax(floors, _LOWEST), np.float32(np.nan))  # nothing reaches NaN

        hits = np.flatnonzero(maxima >= floors[:, None])
        rows = hits // num_columns
        num_hits = np.bincount(rows, minlength=num_rows)
        is_wide = num_hits > _MAX_COLUMNS
        if is_wide.any():
            hits = hits[~is_wide[rows]]
            rows = hits // num_columns
        starts = hits + rows * (self._vocab_size - num_columns)
        places = starts[:, None] + self._offsets
        values = block.reshape(-1).take(places)
        if len(open_rows):
            with np.errstate(invalid="ignore"):
                masses = np.exp(values - largest[rows, None]).sum(axis=1)
            gathered = np.bincount(rows, masses, minlength=num_rows) + self._rest_mass(rest, largest)
        kept = np.flatnonzero(values >= floors[rows, None])
        values, places, rows = values.reshape(-1)[kept], places.reshape(-1)[kept], rows[kept // _FOLD]
        if rest.shape[1]:
            rest_rows, rest_ids = (rest >= floors[:, None]).nonzero()
            values = np.concatenate([values, rest[rest_rows, rest_ids]])
            places = np.concatenate([places, rest_rows * self._vocab_size + self._num_folded + rest_ids])
            rows = np.concatenate([rows, rest_rows])
            order = np.argsort(rows, kind="stable")
            values, places, rows = values[order], places[order], rows[order]
        low, high = np.full(num_rows, np.nan), np.full(num_rows, np.nan)
        if len(open_rows):
            # Columns that were not gathered hold at least their maximum, and at most as much everywhere.
            others = np.where(open_maxima >= floors[open_rows, None], np.float32(0), weights).sum(axis=1)
            low[open_rows] = (gathered[open_rows] + others) * (1 - _BOUND_MARGIN)
            high[open_rows] = (gathered[open_rows] + others * float(_FOLD)) * (1 + _BOUND_MARGIN)
        keys = keys_of(values, places - rows * self._vocab_size)
        return Scan(rows, keys, largest.astype(np.float64), counts, is_open, is_wide, low, high)

    def _scan_whole(self, block: LogitRows, wanted: Wanted) -> Scan:
        """All at once, for a vocabulary too small to fold."""
        largest = block.max(axis=1).astype(np.float64)
        is_good = np.isfinite(largest)
        floors = np.full(len(block), np.nan, np.float32)
        for i in np.flatnonzero(is_good):
            count = int(wanted.counts[i])
            if count == 0:
                floors[i] = _below(largest[i] + wanted.floors[i])
            elif count < self._vocab_size:
                floors[i] = np.partition(block[i], self._vocab_size - count)[self._vocab_size - count]
            else:
                floors[i] = _LOWEST
        rows, ids = (block >= np.fmax(floors, np.where(is_good, _LOWEST, np.float32(np.nan)))[:, None]).nonzero()
        is_open = (wanted.counts == 0) & (wanted.top_ps < 1.0) & is_good
        masses = np.array([mass_of(row, largest[i]) if is_open[i] else np.nan for i, row in enumerate(block)])
        low, high = masses * (1 - _BOUND_MARGIN), masses * (1 + _BOUND_MARGIN)
        counts = np.where(is_open, self._vocab_size + 1, wanted.counts)
        return Scan(
            rows, keys_of(block[rows, ids], ids), largest, counts, is_open, np.zeros(len(block), bool), low, high
        )

    def collect(self, scans: Sequence[Scan]) -> Shortlist:
        """The shortlist of the rows of all scans, one block after the other."""
        starts = np.cumsum([0, *(len(scan.counts) for scan in scans)])
        rows = np.concatenate([scan.rows + start for scan, start in zip(scans, starts, strict=False)])
        keys = np.concatenate([scan.keys for scan in scans])
        counts = np.concatenate([scan.counts for scan in scans])
        is_open = np.concatenate([scan.is_open for scan in scans])
        is_wide = np.concatenate([scan.is_wide for scan in scans])
        num_rows = len(counts)
        lengths = np.bincount(rows, minlength=num_rows)
        is_wide |= lengths > _MAX_WIDTH
        if is_wide.any():
            fits = ~is_wide[rows]
            keys, rows = keys[fits], rows[fits]
            lengths = np.where(is_wide, 0, lengths)
        table = table_of(keys, rows, lengths)
        lengths = np.where(counts > 0, np.minimum(lengths, counts), lengths)
        return Shortlist(
            keys=table[:, : max(1, int(lengths.max()))],
            lengths=lengths,
            largest=np.concatenate([scan.largest for scan in scans]),
            totals=np.full(num_rows, np.nan),
            wide={},
            is_open=is_open,
            is_wide=is_wide,
            is_whole=(lengths < counts) & ~is_wide,
            low=np.concatenate([scan.low for scan in scans]),
            high=np.concatenate([scan.high for scan in scans]),
        )

    def settle(self, row: Floats32, wanted: Wanted, shortlist: Shortlist, index: int) -> None:
        """Do what `collect` left open of one row: weigh it exactly, and find all its candidates if it has too few.

        `row` is not written into, and nothing of other rows is touched: any thread.
        """
        limit = _below(float(shortlist.largest[index] + wanted.floors[index]))
        if not shortlist.is_open[index]:
            shortlist.replace(index, self._find_wide(row, int(wanted.counts[index]), limit))
            return
        largest, top_p = float(shortlist.largest[index]), float(wanted.top_ps[index])
        weights = row - np.float32(largest)
        np.exp(weights, out=weights)
        total = shortlist.totals[index] = sum_of(weights)
        keys = shortlist.candidates(index)
        if len(keys) and (shortlist.is_whole[index] or _mass(keys, largest) >= top_p * total):
            return
        ids = _trim(weights, total, top_p)
        keys = keys_of(row[ids], ids)
        keys.sort()
        if row[ids].min() > limit and _mass(keys, largest) < top_p * total:  # by rounding
            keys = self._sorted_from(row, limit)
        shortlist.replace(index, keys)

    def _guess(self, weights: Floats32, groups: Floats32, largest: Floats32, top_ps: Floats) -> Ids:
        """How many of the largest logits to look at first: as few as leave next to nothing open, at most 128.

        `weights`: exp(column maximum - largest). A column holds at most that for each of its logits, and as many
        logits as there are groups hold at least their group's maximum.
        """
        held = np.exp(groups[:, : -_FIRST_GUESS - 1 : -1] - largest[:, None]).cumsum(axis=1)
        missing = (weights.sum(axis=1)[:, None] - held) * np.float32(_FOLD)
        tolerable = np.minimum(_OPEN_SHARE, (1.0 - top_ps) / top_ps)
        needed = (missing > held * tolerable[:, None]).sum(axis=1) + 1
        return np.where(needed <= held.shape[1], needed, _FIRST_GUESS)

    def _rest_mass(self, rest: Floats32, largest: Floats32) -> Floats:
        if not rest.shape[1]:
            return np.zeros(len(rest))
        with np.errstate(invalid="ignore"):  # of a bad row
            mass: Floats = np.exp(rest - largest[:, None]).sum(axis=1).astype(np.float64)
        return mass

    def _find_wide(self, row: Floats32, count: int, limit: float) -> Keys:
        """The keys of one row with many candidates."""
        if count == 0:
            return self._sorted_from(row, limit)
        if count >= self._vocab_size:
            return self._sorted_from(row, -math.inf)
        parted: Floats32 = np.partition(row, self._vocab_size - count)
        return self._sorted_from(row, float(parted[self._vocab_size - count]))[:count]

    def _sorted_from(self, row: Floats32, floor: float) -> Keys:
        ids = np.flatnonzero(row >= np.float32(max(floor, _LOWEST)))
        keys = keys_of(row[ids], ids)
        keys.sort()
        return keys


def _mass(keys: Keys, largest: float) -> float:
    return float(np.exp(logits_of(keys) - largest).cumsum()[-1])


def _trim(weights: Floats32, total: float, top_p: float) -> Ids:
    """Ids among which are the fewest that hold `top_p` of the total; not many more.

    All that weigh less than spare / count hold less than what is to spare; so top-p does without them, and the same
    argument goes on with the others.
    """
    ids = np.arange(len(weights))
    held = total
    for _ in range(_MAX_TRIMS):
        spare = held - top_p * total * (1 + _ROUNDING)
        kept = np.flatnonzero(weights >= spare / len(weights) * (1 - _ROUNDING))
        num_before = len(weights)
        weights, ids = weights[kept], ids[kept]
        if len(kept) > _WORTH_TRIMMING * num_before:
            break
        held = float(weights.sum(dtype=np.float64))
    return ids


def _below(logit: float) -> float:
    """The next float32 below: where float32 may have rounded a limit up past a logit that belongs.

    The exact cut follows in float64.
    """
    return float(np.nextafter(np.float32(logit), np.float32(-np.inf)))
