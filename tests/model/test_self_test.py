"""A worker serves only a model that answers in company as alone; each way of being wrong is found and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference import catalog
from inference.engine.logits import LogitRows, SlotState
from inference.errors import EngineError
from inference.llama import self_test
from inference.llama.context import LlamaBackend
from inference.llama.loader import LoadedModel, load
from inference.testing import ScriptedBackend
from tests.model.conftest import small_config

pytestmark = pytest.mark.model

PROBE = [3 + 5 * n % 90 for n in range(64)]


def is_empty(backend: ScriptedBackend) -> bool:
    return not any(backend.tokens_in(slot) for slot in range(backend.num_slots))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("num_slots", [1, 2, 3, 8, 40])
def test_a_sound_backend_passes_and_is_left_empty(num_slots: int, is_async: bool) -> None:
    backend = ScriptedBackend(num_slots=num_slots, is_async=is_async)
    self_test.run(backend, PROBE)
    assert is_empty(backend)
    rows = {sum(piece.wants_logits for piece in pieces) for pieces in backend.pieces}
    assert {1, min(2, num_slots), num_slots} <= rows
    assert {piece.slot for pieces in backend.pieces for piece in pieces} == set(range(num_slots))


@pytest.mark.parametrize(("num_slots", "pool_tokens", "context_tokens"), [(8, 96, 64), (4, 64, 16), (40, 480, 256)])
def test_it_fits_a_small_memory(num_slots: int, pool_tokens: int, context_tokens: int) -> None:
    backend = ScriptedBackend(num_slots=num_slots, pool_tokens=pool_tokens, context_tokens=context_tokens)
    self_test.run(backend, PROBE)
    assert is_empty(backend)


def test_a_device_is_warmed_with_full_batches() -> None:
    backend = ScriptedBackend(num_slots=8, max_batch_tokens=512, context_tokens=512, is_async=True)
    self_test.run(backend, PROBE)
    assert max(sum(len(piece.tokens) for piece in pieces) for pieces in backend.pieces) > 0.75 * 512


def test_a_backend_that_takes_no_states_back_may_serve() -> None:
    self_test.run(ScriptedBackend(refuses_states=True), PROBE)


def test_numbers_that_are_not_finite_are_found() -> None:
    with pytest.raises(EngineError, match="first forward gave numbers that are not finite"):
        self_test.run(ScriptedBackend(nan_rows={(2, 0)}), PROBE)
    with pytest.raises(EngineError, match="a batch of 4 gave numbers"):
        self_test.run(ScriptedBackend(nan_when=lambda history: len(history) < 7), PROBE)


class WrongInABatch(ScriptedBackend):
    """Rows from the third on are those of another text."""

    def logits(self) -> LogitRows:
        rows = super().logits()
        rows[2:] = np.roll(rows[2:], 17, axis=1)
        return rows


class MixedUpPair(ScriptedBackend):
    def logits(self) -> LogitRows:
        rows = super().logits()
        return rows[::-1] if len(rows) == 2 else rows


class WrongCopy(ScriptedBackend):
    def copy_prefix(self, source: int, target: int, length: int) -> None:
        super().copy_prefix(source, target, length)
        memory = self._memory[target]
        memory.hashes[-1] ^= 1


class WrongState(ScriptedBackend):
    def restore(self, slot: int, state: SlotState) -> bool:
        tokens = state.view(np.int32).copy()
        tokens[0] ^= 1
        return super().restore(slot, tokens.view(np.uint8))


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (WrongInABatch, "a batch of 8"),
        (MixedUpPair, "a batch of 2"),
        (WrongCopy, "a copied prefix"),
        (WrongState, "a saved state"),
    ],
)
def test_each_fault_is_found_by_name(kind: type[ScriptedBackend], check: str) -> None:
    with pytest.raises(EngineError, match=check) as caught:
        self_test.run(kind(num_slots=8), PROBE)
    assert caught.value.facts["check"] == check


class NearlyEqual(ScriptedBackend):
    """The two best are near each other, and in company another than the best comes out."""

    rank = 2

    def logits(self) -> LogitRows:
        rows = super().logits()
        if len(rows) > 1:
            for row in rows:
                row[np.argsort(row)[-self.rank]] = row.max() + 0.01
        return rows

    def _row(self, memory: Any) -> Any:
        row = super()._row(memory)
        second, best = np.argsort(row)[-2:]
        row[best] = row[second] + np.float32(0.005)
        return row


class FarBehind(NearlyEqual):
    rank = 60


def test_a_near_tie_is_no_fault_and_a_token_from_far_behind_is() -> None:
    self_test.run(NearlyEqual(num_slots=4), PROBE)
    with pytest.raises(EngineError, match="a batch of 2"):
        self_test.run(FarBehind(num_slots=4), PROBE)


@pytest.mark.parametrize("unified", [True, False])
def test_a_model_whose_batches_are_wrong_is_not_served(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, unified: bool
) -> None:
    whole = LlamaBackend.logits

    def logits(self: LlamaBackend) -> LogitRows:
        rows = whole(self).copy()
        if len(rows) > 4:
            rows[3] = rows[3][::-1]
        return rows

    monkeypatch.setattr(LlamaBackend, "logits", logits)
    with pytest.raises(EngineError, match="a batch of 8 answers otherwise"):
        load(catalog.entry_of_path(tiny_path), small_config(), unified=unified)


def test_real_models_pass_and_are_left_empty(smollm2: LoadedModel, tiny: LoadedModel) -> None:
    """Loading them ran the test."""
    for model in (smollm2, tiny):
        assert all(model.backend.length(slot) == 0 for slot in range(model.backend.num_slots))
        model.backend.check_integrity()
