"""Doubles that ship with the package: a backend without a model.

`ScriptedBackend` keeps what a real backend keeps (the tokens in every slot) and computes logits from nothing else, so
an engine that mixes up slots, loses a token or gives a wrong position changes the answer. It also checks every call
against the rules of `engine/backend.py` and raises AssertionError where llama.cpp would end the process. Tests of the
engine, of the worker and of the whole path use it in place of a model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.engine.batch import Batch
from inference.engine.logits import Excerpt, LogitRows, SlotState
from inference.errors import EngineError

_MASK = (1 << 64) - 1
_PREFERENCE = 3.0  # by how much the hashed next token stands above the noise of the others
_CERTAINTY = 60.0  # by how much a scripted one does: no temperature up to 2 chooses another
_GATE_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Piece:
    """What one forward held of one slot."""

    slot: int
    first_position: int
    tokens: tuple[int, ...]
    wants_logits: bool


class _SlotMemory:
    """Tokens of a slot, and for each position a hash over all tokens up to it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.hashes: list[int] = []
        self.is_spoilt = False  # a forward with it on board failed; only clearing helps

    def append(self, token: int) -> None:
        before = self.hashes[-1] if self.hashes else 0x243F6A8885A308D3
        self.tokens.append(token)
        self.hashes.append(_mix((before ^ (token + 1)) & _MASK))


class ScriptedBackend:
    """A Backend whose logits follow from the tokens of the slot alone.

    After a history that no script covers, the next token preferred is a hash of that history. Scripts:

    - `answers`: prompt token ids -> token ids to answer with, then `end_token`;
    - `script`: called with the whole history, returns the next token id, or None for the hash.

    Faults and timing, forwards counted from 1:

    - `delay_seconds` per forward, spent in `logits` when `is_async`; `gate`, when given, must be set for a forward to
      go on (`forwards_begun` and `wait_for_forward` tell that one stands before it);
    - `fail_forwards` numbers and `fail_when` (sees the batch's pieces) make a forward raise EngineError, when
      `fails_late` only in `logits()`, and spoil the KV on board; `crash_forwards` raise RuntimeError;
    - more tokens in all slots than `pool_tokens` make a forward raise EngineError with code 1, nothing evaluated
      (`num_overfull` counts these);
    - `excerpt_width`: rows come as excerpts of blocks so wide, as many blocks as there are half of;
    - `refuses_states`: nothing that was saved can be restored;
    - `nan_rows`: (forward, row); `nan_when` sees the history of a row.

    `pieces` lists per successful forward what it held.
    """

    def __init__(
        self,
        *,
        num_slots: int = 4,
        context_tokens: int = 256,
        pool_tokens: int | None = None,
        is_async: bool = False,
        max_batch_tokens: int = 64,
        vocab_size: int = 97,
        end_token: int = 0,
        answers: Mapping[tuple[int, ...], Sequence[int]] | None = None,
        script: Callable[[Sequence[int]], int | None] | None = None,
        delay_seconds: float = 0.0,
        gate: threading.Event | None = None,
        fail_forwards: Collection[int] = (),
        fail_when: Callable[[Sequence[Piece]], bool] | None = None,
        fails_late: bool = False,
        crash_forwards: Collection[int] = (),
        nan_rows: Collection[tuple[int, int]] = (),
        nan_when: Callable[[Sequence[int]], bool] | None = None,
        refuses_states: bool = False,
        excerpt_width: int = 0,
        wants_low_slots: bool = False,
    ) -> None:
        self.num_slots = num_slots
        self.context_tokens = context_tokens
        self.pool_tokens = num_slots * context_tokens if pool_tokens is None else pool_tokens
        self.is_async = is_async
        self.max_batch_tokens = max_batch_tokens
        self.vocab_size = vocab_size
        self.end_token = end_token
        self.answers = dict(answers or {})
        self.script = script
        self.delay_seconds = delay_seconds
        self.gate = gate
        self.fail_forwards = fail_forwards
        self.fail_when = fail_when
        self.fails_late = fails_late
        self.crash_forwards = crash_forwards
        self.nan_rows = nan_rows
        self.nan_when = nan_when
        self.forwards_begun = 0
        self.pieces: list[tuple[Piece, ...]] = []
        self.num_copied_tokens = 0
        self.num_restored_tokens = 0
        self.num_overfull = 0
        self.refuses_states = refuses_states
        self.excerpt_width = excerpt_width
        self.wants_low_slots = wants_low_slots
        self.whole_slots: set[int] = set()
        self.is_closed = False
        self._memory = [_SlotMemory() for _ in range(num_slots)]
        self._computed = np.zeros((0, vocab_size), np.float32)
        self._rows: list[int] = []  # slots whose last position's logits were asked for
        self._late_error: EngineError | None = None
        self._thread: int | None = None
        self._begun = threading.Condition()

    # Backend

    def forward(self, batch: Batch) -> None:
        self._check_thread()
        pieces = self._checked_pieces(batch)
        with self._begun:
            self.forwards_begun += 1
            number = self.forwards_begun
            self._begun.notify_all()
        if self.gate is not None:
            assert self.gate.wait(_GATE_DEADLINE_SECONDS), "the gate stayed shut"
        if self.delay_seconds and not self.is_async:
            time.sleep(self.delay_seconds)
        if number in self.crash_forwards:
            raise RuntimeError(f"forward {number} crashed as scripted")
        self._late_error = None
        num_held = sum(len(memory.tokens) for memory in self._memory) + sum(len(piece.tokens) for piece in pieces)
        if num_held > self.pool_tokens:
            self.num_overfull += 1
            raise EngineError(f"forward {number} found no room for {num_held} tokens", code=1)
        if number in self.fail_forwards or (self.fail_when is not None and self.fail_when(pieces)):
            for piece in pieces:
                self._memory[piece.slot].is_spoilt = True
            error = EngineError(f"forward {number} failed as scripted")
            if not self.fails_late:
                raise error
            self._late_error = error
            return
        for piece in pieces:
            for token in piece.tokens:
                self._memory[piece.slot].append(token)
        self._rows = [piece.slot for piece in pieces if piece.wants_logits]
        self.pieces.append(pieces)

    def logits(self) -> LogitRows:
        self._check_thread()
        assert self.forwards_begun, "logits before any forward"
        if self.delay_seconds and self.is_async:
            time.sleep(self.delay_seconds)
        if self._late_error is not None:
            raise self._late_error
        rows = np.empty((len(self._rows), self.vocab_size), np.float32)
        for index, slot in enumerate(self._rows):
            memory = self._memory[slot]
            rows[index] = self._row(memory)
            if (self.forwards_begun, index) in self.nan_rows or (self.nan_when and self.nan_when(memory.tokens)):
                rows[index, self.vocab_size // 2] = np.nan
        if not self.gives_excerpts:
            return rows
        self._computed = rows
        shown = rows.copy()
        for index, slot in enumerate(self._rows):
            if slot not in self.whole_slots:
                shown[index] = np.nan  # nobody may read what is not handed over
        return shown

    def remove_range(self, slot: int, start: int, end: int = -1) -> None:
        self._check_thread()
        memory = self._memory[slot]
        if start == 0 and end == -1:
            self._memory[slot] = _SlotMemory()
            return
        assert not memory.is_spoilt, f"slot {slot} must be cleared after a failed forward"
        assert end == -1, "a hole in the middle of a slot"
        assert 0 <= start <= len(memory.tokens), (slot, start, len(memory.tokens))
        del memory.tokens[start:], memory.hashes[start:]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self._check_thread()
        origin, goal = self._memory[source], self._memory[target]
        assert source != target, source
        assert not origin.is_spoilt, source
        assert not goal.is_spoilt, target
        assert not goal.tokens, f"slot {target} is not empty"
        assert 0 < length <= len(origin.tokens), (source, length, len(origin.tokens))
        goal.tokens = origin.tokens[:length]
        goal.hashes = origin.hashes[:length]
        self.num_copied_tokens += length
        self._check_pool()

    @property
    def gives_excerpts(self) -> bool:
        return self.excerpt_width > 0

    def set_whole(self, slot: int, is_whole: bool) -> None:
        self._check_thread()
        (self.whole_slots.add if is_whole else self.whole_slots.discard)(slot)

    def excerpt(self, rows: Sequence[int]) -> Excerpt:
        assert not any(self._rows[i] in self.whole_slots for i in rows), "asked for excerpts of whole rows"
        width = self.excerpt_width
        logits = self._computed[list(rows)].astype(np.float64)
        blocks = self._computed[list(rows)].reshape(len(rows), -1, width)
        maxima = blocks.max(axis=2)
        order = (-maxima).argsort(axis=1)[:, : max(1, blocks.shape[1] // 2)]
        softmax = np.exp(logits - logits.max(axis=1, keepdims=True))
        softmax /= softmax.sum(axis=1, keepdims=True)
        return Excerpt(
            np.take_along_axis(blocks, order[:, :, None], axis=1).reshape(len(rows), -1),
            np.take_along_axis(maxima, order, axis=1),
            order.astype(np.int32),
            softmax.reshape(blocks.shape)[np.arange(len(rows)), order[:, 0]].astype(np.float32),
        )

    def save(self, slot: int) -> SlotState:
        self._check_thread()
        memory = self._memory[slot]
        assert not memory.is_spoilt, slot
        return np.array(memory.tokens, np.int32).view(np.uint8)

    def restore(self, slot: int, state: SlotState) -> bool:
        self._check_thread()
        assert not self._memory[slot].tokens, f"slot {slot} is not empty"
        if self.refuses_states:
            return False
        self._memory[slot] = _SlotMemory()
        for token in state.view(np.int32).tolist():
            self._memory[slot].append(token)
        self.num_restored_tokens += len(self._memory[slot].tokens)
        self._check_pool()
        return True

    def close(self) -> None:
        self._check_thread()
        self.is_closed = True

    # For tests

    def tokens_in(self, slot: int) -> list[int]:
        """What the slot's KV holds now."""
        return list(self._memory[slot].tokens)

    def wait_for_forward(self, number: int, timeout: float = 10.0) -> bool:
        """Wait until forward `number` has begun (and stands before the gate, if that is shut)."""
        with self._begun:
            return self._begun.wait_for(lambda: self.forwards_begun >= number, timeout)

    def next_logits(self, history: Sequence[int]) -> npt.NDArray[np.float32]:
        """The row after exactly these tokens, as any slot that holds them would give it."""
        memory = _SlotMemory()
        for token in history:
            memory.append(token)
        return self._row(memory)

    # Inside

    def _checked_pieces(self, batch: Batch) -> tuple[Piece, ...]:
        assert not self.is_closed, "forward after close"
        assert 0 < batch.num_tokens <= self.max_batch_tokens, batch.num_tokens
        slots, tokens = batch.slots.tolist(), batch.tokens.tolist()
        positions, wants = batch.positions.tolist(), batch.wants_logits.tolist()
        pieces: list[Piece] = []
        start = 0
        while start < len(slots):
            slot, end = slots[start], start
            while end < len(slots) and slots[end] == slot:
                end += 1
            assert 0 <= slot < self.num_slots, slot
            memory = self._memory[slot]
            assert all(slot != piece.slot for piece in pieces), f"slot {slot} twice in a batch"
            assert not memory.is_spoilt, f"slot {slot} must be cleared after a failed forward"
            expected = list(range(len(memory.tokens), len(memory.tokens) + end - start))
            assert positions[start:end] == expected, (slot, positions[start:end], expected)
            assert expected[-1] < self.context_tokens, f"slot {slot} is full"
            assert all(0 <= token < self.vocab_size for token in tokens[start:end]), "no such token"
            assert not any(wants[start : end - 1]), "logits in the middle of a chunk"
            pieces.append(Piece(slot, expected[0], tuple(tokens[start:end]), bool(wants[end - 1])))
            start = end
        assert batch.num_logit_rows == sum(piece.wants_logits for piece in pieces)
        return tuple(pieces)

    def _row(self, memory: _SlotMemory) -> npt.NDArray[np.float32]:
        state = np.uint64(memory.hashes[-1]) + np.arange(1, self.vocab_size + 1, dtype=np.uint64) * _GAMMA
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        row = ((state >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)) * np.float32(4.0)
        scripted = self._scripted(memory.tokens)
        if scripted is None:
            row[memory.hashes[-1] % self.vocab_size] += np.float32(_PREFERENCE)
        else:
            row[scripted] += np.float32(_CERTAINTY)
        return row

    def _scripted(self, history: list[int]) -> int | None:
        for prompt, answer in self.answers.items():
            num_done = len(history) - len(prompt)
            if 0 <= num_done <= len(answer) and tuple(history) == (*prompt, *answer[:num_done]):
                return answer[num_done] if num_done < len(answer) else self.end_token
        return self.script(history) if self.script is not None else None

    def _check_pool(self) -> None:
        num_held = sum(len(memory.tokens) for memory in self._memory)
        assert num_held <= self.pool_tokens, f"{num_held} tokens in a pool of {self.pool_tokens}"

    def _check_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.get_ident()
        assert self._thread == threading.get_ident(), "a backend is called from one thread alone"


_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
