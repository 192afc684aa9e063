"""The double is strict: what would end a llama.cpp process, or mix up conversations, fails here."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.batch import Batch
from inference.errors import EngineError
from inference.testing import ScriptedBackend
from tests.engine.driving import ids


def batch(*pieces: tuple[int, list[int], int], wants_logits: bool = True) -> Batch:
    made = Batch(1000)
    for slot, tokens, first_position in pieces:
        made.add(slot, ids(tokens), first_position, wants_logits=wants_logits)
    return made


def evaluated(*pieces: tuple[int, list[int], int], **options: object) -> ScriptedBackend:
    backend = ScriptedBackend(**options)  # type: ignore[arg-type]
    backend.forward(batch(*pieces))
    return backend


@pytest.mark.parametrize("position", [0, 2, 4])
def test_positions_must_go_on_exactly(position):
    backend = evaluated((0, [1, 2, 3], 0))
    with pytest.raises(AssertionError):
        backend.forward(batch((0, [4], position)))


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, [1] * 9, 0)],  # beyond the context
        [(0, [1] * 8, 0), (1, [1] * 8, 0), (2, [1] * 8, 0)],  # beyond the batch
        [(0, [97], 0)],
        [(9, [1], 0)],
        [(0, [1], 0), (1, [1], 0), (0, [1], 1)],  # a slot in two pieces
        [],
    ],
)
def test_capacities_hold(pieces):
    backend = ScriptedBackend(context_tokens=8, max_batch_tokens=20)
    with pytest.raises(AssertionError):
        backend.forward(batch(*pieces))


def test_logits_depend_on_the_whole_history_and_not_on_chunks_or_neighbours():
    whole = evaluated((0, [5, 6, 7, 8], 0)).logits()[0]
    backend = evaluated((1, [9], 0), (2, [5, 6], 0))
    backend.forward(batch((0, [1], 0), (2, [7, 8], 2)))
    assert np.array_equal(backend.logits()[1], whole)
    assert np.array_equal(backend.next_logits([5, 6, 7, 8]), whole)
    assert not np.array_equal(backend.next_logits([6, 5, 7, 8]), whole)


def test_copy_and_removal_leave_what_they_should():
    backend = evaluated((0, [5, 6, 7, 8], 0))
    backend.copy_prefix(0, 1, 3)
    backend.remove_range(0, 1)
    assert (backend.tokens_in(0), backend.tokens_in(1)) == ([5], [5, 6, 7])
    backend.forward(batch((1, [8], 3)))
    assert np.array_equal(backend.logits()[0], backend.next_logits([5, 6, 7, 8]))
    for bad in ((0, 1, 1), (1, 1, 1), (0, 2, 2)):
        with pytest.raises(AssertionError):
            backend.copy_prefix(*bad)


@pytest.mark.parametrize("fails_late", [False, True])
def test_slots_of_a_failed_forward_are_useless_until_cleared(fails_late):
    backend = ScriptedBackend(fail_forwards={1}, fails_late=fails_late)
    if fails_late:
        backend.forward(batch((0, [1, 2], 0)))
    with pytest.raises(EngineError):
        backend.logits() if fails_late else backend.forward(batch((0, [1, 2], 0)))
    with pytest.raises(AssertionError, match="cleared"):
        backend.forward(batch((0, [1, 2], 0)))
    backend.remove_range(0, 0)
    backend.forward(batch((0, [1, 2], 0)))
    assert backend.tokens_in(0) == [1, 2]


def test_scripted_answer_is_followed_by_the_end_token():
    backend = ScriptedBackend(answers={(5, 6): [7, 8]}, end_token=3)
    assert [int(backend.next_logits(h).argmax()) for h in ([5, 6], [5, 6, 7], [5, 6, 7, 8])] == [7, 8, 3]


def test_prefill_without_logits_gives_no_rows():
    backend = ScriptedBackend()
    backend.forward(batch((0, [1, 2], 0), wants_logits=False))
    assert backend.logits().shape == (0, 97)
