"""The order in which a batch goes to llama.cpp when every slot is a stream of its own.

llama.cpp evaluates streams together only while their numbers follow each other and each brings equally many tokens;
at every hole in the numbers, and at every longer chunk, it starts another graph. On an H100 one more graph costs about
6 ms, most of it host time, where a whole step of 32 rows takes 7.5 ms; one more row costs 0.1 ms. So holes between
decode rows are bridged: with the first token of a chunk that is to be read in that slot anyway, else with a filler
row, whose position is taken back after the call.

Pure arithmetic over arrays; `context.py` calls it for each forward call on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.engine.batch import Batch

FILLER_TOKEN = 0  # any id will do: nobody reads what follows from it

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Layout:
    """Arrays of one length for llama_batch; rows that want logits are in the order of the batch they came from.

    `fillers` are slots with one position more than they had, which must be removed again.
    """

    tokens: Ints
    positions: Ints
    slots: Ints
    wants_logits: npt.NDArray[np.int8]
    fillers: tuple[int, ...] = ()


def plain(batch: Batch) -> Layout:
    """`batch` as it is."""
    return Layout(batch.tokens, batch.positions, batch.slots, batch.wants_logits)


def arrange(batch: Batch, lengths: Ints, context_tokens: int) -> Layout:
    """`batch` with its holes bridged; `lengths` are the positions each slot holds.

    Expects decode rows first, by rising slot, then chunks: the order in which the step loop fills a batch.
    """
    rows = batch.slots[: batch.num_rows]
    if len(rows) == 0 or rows[-1] - rows[0] + 1 == len(rows):
        return plain(batch)
    first_of_chunk = _first_places(batch)
    order: list[int] = []  # places in the batch; -1 for a filler
    fillers: list[int] = []
    moved: list[int] = []
    for place, slot in enumerate(rows.tolist()):
        hole = range(int(rows[place - 1]) + 1, slot) if place else range(0)
        firsts = [first_of_chunk.get(between, -1) for between in hole]
        # A full slot has no position for a filler, and logits must stay in the order of the batch: bridge all or none.
        if all(
            not batch.wants_logits[first] if first >= 0 else lengths[between] < context_tokens
            for between, first in zip(hole, firsts)
        ):
            order += firsts
            moved += [first for first in firsts if first >= 0]
            fillers += [between for between, first in zip(hole, firsts) if first < 0]
        order.append(place)
    left = np.ones(batch.num_tokens, bool)
    left[: len(rows)] = False
    left[moved] = False
    places = np.concatenate([np.array(order, np.int64), left.nonzero()[0]])
    is_filler = places < 0
    places[is_filler] = 0
    tokens, positions = batch.tokens[places], batch.positions[places]
    slots, wants_logits = batch.slots[places], batch.wants_logits[places]
    filled = np.array(fillers, np.int32)
    tokens[is_filler] = FILLER_TOKEN
    positions[is_filler] = lengths[filled]
    slots[is_filler] = filled
    wants_logits[is_filler] = 0
    return Layout(tokens, positions, slots, wants_logits, tuple(fillers))


def _first_places(batch: Batch) -> dict[int, int]:
    """Where the chunk of each slot begins."""
    slots = batch.slots[batch.num_rows :]
    if len(slots) == 0:
        return {}
    starts = np.flatnonzero(np.diff(slots, prepend=-1)) + batch.num_rows
    return {int(batch.slots[place]): int(place) for place in starts}
