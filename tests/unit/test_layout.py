"""The order in which separate streams go to llama.cpp: as few graphs as can be, and nothing lost or moved."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.batch import Batch
from inference.llama.layout import arrange, plain

NUM_SLOTS, CONTEXT = 12, 50


def make_batch(rows: list[int], chunks: dict[int, int], lengths: np.ndarray, *, finishing: frozenset[int]) -> Batch:
    batch = Batch(256)
    if rows:
        batch.add_rows(rows, [100 + slot for slot in rows], [int(lengths[slot]) for slot in rows])
    for slot, size in sorted(chunks.items()):
        tokens = np.arange(1000 * slot, 1000 * slot + size, dtype=np.int32)
        batch.add(slot, tokens, int(lengths[slot]), wants_logits=slot in finishing)
    return batch


@st.composite
def batches(draw):
    lengths = np.array(draw(st.lists(st.integers(0, 30), min_size=NUM_SLOTS, max_size=NUM_SLOTS)), np.int32)
    kinds = draw(st.lists(st.sampled_from(["idle", "row", "chunk", "full"]), min_size=NUM_SLOTS, max_size=NUM_SLOTS))
    for slot, kind in enumerate(kinds):
        if kind == "full":
            lengths[slot] = CONTEXT
    chunks = {slot: draw(st.integers(1, 9)) for slot, kind in enumerate(kinds) if kind == "chunk"}
    finishing = frozenset(slot for slot in chunks if draw(st.booleans()))
    rows = [slot for slot, kind in enumerate(kinds) if kind == "row"]
    return make_batch(rows, chunks, lengths, finishing=finishing), lengths


def graphs_of(slots: list[int]) -> int:
    """How many graphs llama.cpp makes of it: sequences that follow each other, all with equally many tokens."""
    left = list(enumerate(slots))
    count = 0
    while left:
        chosen: list[int] = []
        for _, slot in left:
            if slot not in chosen and (not chosen or slot == chosen[-1] + 1):
                chosen.append(slot)
        size = min(sum(slot == wanted for _, slot in left) for wanted in chosen)
        taken = dict.fromkeys(chosen, 0)
        rest = []
        for place, slot in left:
            if slot in taken and taken[slot] < size:
                taken[slot] += 1
            else:
                rest.append((place, slot))
        left = rest
        count += 1
    return count


@given(batches())
def test_every_token_is_there_once_and_only_fillers_are_new(case):
    batch, lengths = case
    layout = arrange(batch, lengths, CONTEXT)
    wanted = sorted(zip(batch.slots.tolist(), batch.positions.tolist(), batch.tokens.tolist()))
    fillers = [(slot, int(lengths[slot]), 0) for slot in layout.fillers]
    found = sorted(zip(layout.slots.tolist(), layout.positions.tolist(), layout.tokens.tolist()))
    assert found == sorted(wanted + fillers)
    assert all(lengths[slot] < CONTEXT for slot in layout.fillers)


@given(batches())
def test_rows_that_want_logits_keep_their_order(case):
    batch, lengths = case
    layout = arrange(batch, lengths, CONTEXT)
    wants = layout.wants_logits.astype(bool)
    assert layout.slots[wants].tolist() == batch.slots[batch.wants_logits.astype(bool)].tolist()


@given(batches())
def test_tokens_of_a_slot_keep_their_order(case):
    batch, lengths = case
    layout = arrange(batch, lengths, CONTEXT)
    for slot in set(layout.slots.tolist()):
        positions = layout.positions[layout.slots == slot].tolist()
        assert positions == list(range(positions[0], positions[0] + len(positions)))


@given(batches())
def test_bridging_never_makes_more_graphs(case):
    batch, lengths = case
    assert graphs_of(arrange(batch, lengths, CONTEXT).slots.tolist()) <= graphs_of(batch.slots.tolist() or [0])


@pytest.mark.parametrize("rows", [[0, 2, 4, 6], [0, 11], [3, 4, 9]])
def test_decode_rows_with_holes_are_one_graph(rows):
    lengths = np.full(NUM_SLOTS, 10, np.int32)
    layout = arrange(make_batch(rows, {}, lengths, finishing=frozenset()), lengths, CONTEXT)
    assert graphs_of(layout.slots.tolist()) == 1
    assert layout.fillers == tuple(slot for slot in range(rows[0], rows[-1]) if slot not in rows)


def test_a_chunk_between_decode_rows_bridges_with_its_own_first_token():
    lengths = np.full(NUM_SLOTS, 10, np.int32)
    batch = make_batch([0, 1, 3, 4], {2: 8}, lengths, finishing=frozenset({2}))
    layout = arrange(batch, lengths, CONTEXT)
    assert layout.fillers == ()
    assert graphs_of(layout.slots.tolist()) == 2


def test_rows_without_holes_go_as_they_are():
    lengths = np.full(NUM_SLOTS, 10, np.int32)
    batch = make_batch([4, 5, 6], {9: 3}, lengths, finishing=frozenset())
    assert np.array_equal(arrange(batch, lengths, CONTEXT).slots, plain(batch).slots)
