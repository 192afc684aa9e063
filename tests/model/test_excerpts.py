"""Excerpts of logits, cut by llama.cpp's own graph: they hold what the whole rows hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inference import catalog
from inference.engine.batch import Batch
from inference.engine.sampling.excerpt import NUM_BLOCKS
from inference.llama.excerpts import block_width
from inference.llama.loader import LoadedModel, load
from tests.model.conftest import small_config

pytestmark = pytest.mark.model

PROMPTS = {slot: np.arange(20 + 3 * slot, 60 + 5 * slot, dtype=np.int32) for slot in range(6)}


@pytest.fixture(scope="module")
def cutting(tiny_path: Path) -> Iterator[LoadedModel]:
    model = load(catalog.entry_of_path(tiny_path), small_config(WORKER_KV_TYPE="q8_0"), has_excerpts=True)
    yield model
    model.backend.close()


@pytest.fixture
def backend(cutting: LoadedModel):
    yield cutting.backend
    for slot in range(cutting.backend.num_slots):
        cutting.backend.remove_range(slot, 0)
        cutting.backend.set_whole(slot, False)


def read_prompts(backend, slots) -> None:
    batch = Batch(backend.max_batch_tokens)
    for slot in slots:
        batch.add(slot, PROMPTS[slot], 0, wants_logits=True)
    backend.forward(batch)
    backend.logits()


def whole_rows(backend, slots) -> np.ndarray:
    for slot in slots:
        backend.set_whole(slot, True)
    read_prompts(backend, slots)
    rows = backend.logits().copy()
    for slot in slots:
        backend.remove_range(slot, 0)
        backend.set_whole(slot, False)
    return rows


def test_an_excerpt_holds_the_blocks_with_the_largest_logits_and_the_mass_of_the_row(backend):
    slots = [0, 1, 2, 5]
    rows = whole_rows(backend, slots)
    read_prompts(backend, slots)
    excerpt = backend.excerpt(range(len(slots)))
    width = block_width(backend.vocab_size)
    values = excerpt.values.reshape(len(slots), NUM_BLOCKS, width)
    for i, row in enumerate(rows):
        for block, first in zip(values[i], excerpt.blocks[i] * width):
            np.testing.assert_array_equal(block, row[first : first + width])
        largest = np.sort(row.reshape(-1, width).max(axis=1))[-NUM_BLOCKS:]
        np.testing.assert_array_equal(np.sort(excerpt.maxima[i]), largest)
        mass = np.exp(row.astype(np.float64) - row.max()).sum()
        assert excerpt.masses()[i] == pytest.approx(mass, rel=1e-5)


def test_whole_rows_and_excerpts_go_side_by_side(backend):
    slots = [0, 1, 2, 3]
    rows = whole_rows(backend, slots)
    for slot in (1, 2):
        backend.set_whole(slot, True)
    read_prompts(backend, slots)
    np.testing.assert_array_equal(backend.logits()[[1, 2]], rows[[1, 2]])
    excerpt = backend.excerpt([0, 3])
    for i, row in enumerate(rows[[0, 3]]):
        assert excerpt.values[i].max() == row.max()


def test_rows_stay_apart_when_others_come_and_go_over_many_steps(backend):
    width = block_width(backend.vocab_size)
    read_prompts(backend, [0, 1, 2, 3])
    for step in range(12):
        slots = [slot for slot in range(4) if (step + slot) % 3]
        batch = Batch(backend.max_batch_tokens)
        batch.add_rows(slots, [7 + step + slot for slot in slots], [backend.length(slot) for slot in slots])
        for slot in slots:
            backend.set_whole(slot, slot == slots[-1] and step % 2 == 0)
        backend.forward(batch)
        backend.logits()
        cut = [place for place in range(len(slots)) if place != len(slots) - 1 or step % 2]
        excerpt = backend.excerpt(cut)
        for i, place in enumerate(cut):
            copy = slots[place]
            probe = 7  # an unused slot reads the same tokens: its whole row must agree
            backend.copy_prefix(copy, probe, backend.length(copy))
            backend.remove_range(probe, backend.length(copy) - 1)
            backend.set_whole(probe, True)
            again = Batch(backend.max_batch_tokens)
            again.add_rows([probe], [7 + step + copy], [backend.length(probe)])
            backend.forward(again)
            row = backend.logits()[0]
            found = excerpt.values[i].reshape(NUM_BLOCKS, width)
            expected = np.stack([row[first : first + width] for first in excerpt.blocks[i] * width])
            np.testing.assert_allclose(found, expected, atol=0.02)
            backend.remove_range(probe, 0)


@pytest.mark.parametrize(
    ("vocab_size", "width"), [(128_256, 32), (49_152, 32), (3_072, 8), (151_936, 32), (1_000, None)]
)
def test_block_width_cuts_evenly_or_says_no(vocab_size, width):
    assert block_width(vocab_size) == width
