"""LlamaBackend: the engine's Backend over one llama_context.

Owns the context, the arrays that llama_decode reads, and the count of positions each slot holds. Knows nothing of
requests, prompts or sampling. One thread: the engine's; only construction happens elsewhere.

A failed assertion inside the library ends the process, so every call is checked here first: sizes, token ids, slot
ids, and that each slot's positions go on exactly where it stands. Positions are never shifted (llama_memory_seq_add):
SmolLM3 leaves every fourth layer without RoPE and the library's shift does not know that.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import structlog

from inference.engine.backend import LogitRows
from inference.engine.batch import Batch
from inference.errors import EngineError
from inference.llama.native_log import recent_lines

log = structlog.get_logger(__name__)

KV_TYPES = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}
KV_BYTES_PER_VALUE = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
CELL_PADDING = 256  # llama.cpp rounds the cells of a stream up to this
MAX_UBATCH_TOKENS = 512  # tokens of one graph; larger ones only cost memory
_YARN = 2  # LLAMA_ROPE_SCALING_TYPE_YARN

_DECODE_FAULTS = {
    1: "no room in the KV cache",
    2: "aborted",
    -1: "the batch was refused",
}


@dataclass(frozen=True, kw_only=True)
class ContextForm:
    """The size and kind of a context. `context_tokens` of one slot is a multiple of 256.

    `unified` puts all slots into one pool of cells: copying a prefix is free and a mixed batch is one graph, but the
    attention of every slot scans the whole used pool. Separate streams cut a mixed batch into several graphs.
    """

    context_tokens: int
    slots: int
    batch_tokens: int
    kv_type: str
    threads: int
    unified: bool
    yarn_factor: float = 1.0

    @property
    def total_tokens(self) -> int:
        return self.context_tokens * self.slots


def new_context(model: Any, form: ContextForm) -> Any | None:
    """A llama_context of that form, or None when the library could not make it (as a rule: no memory)."""
    params = lib.llama_context_default_params()
    params.n_ctx = form.total_tokens
    params.n_batch = max(form.batch_tokens, form.slots)
    params.n_ubatch = min(params.n_batch, MAX_UBATCH_TOKENS)
    params.n_seq_max = form.slots
    # 0 would reserve logits for a whole batch: 512 rows of 128,256 floats are 262 MB.
    params.n_outputs_max = form.slots
    params.n_threads = params.n_threads_batch = form.threads
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED  # a quantized V cache needs it
    params.type_k = params.type_v = KV_TYPES[form.kv_type]
    params.kv_unified = form.unified
    params.offload_kqv = True
    params.no_perf = True
    if form.yarn_factor > 1.0:
        params.rope_scaling_type = _YARN
        params.rope_freq_scale = 1.0 / form.yarn_factor
        params.yarn_orig_ctx = round(form.context_tokens / form.yarn_factor)
    return lib.llama_init_from_model(model, params) or None


class LlamaBackend:
    """Backend over `context`; owns it and `model`, and frees both in close()."""

    def __init__(self, model: Any, context: Any, form: ContextForm) -> None:
        self._model = model
        self._context = context
        self._form = form
        self._memory = lib.llama_get_memory(context)
        self._vocab_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self._capacity = max(form.batch_tokens, form.slots)
        self._lengths = np.zeros(form.slots, np.int32)
        self._num_rows = 0
        self._is_closed = False
        self._tokens = np.zeros(self._capacity, np.int32)
        self._positions = np.zeros(self._capacity, np.int32)
        self._slots = np.zeros(self._capacity, np.int32)
        self._wants_logits = np.zeros(self._capacity, np.int8)
        self._num_seq_ids = np.ones(self._capacity, np.int32)
        # seq_id[i] points at the i-th slot number: each token belongs to exactly one sequence.
        first = self._slots.ctypes.data
        self._seq_ids = np.arange(first, first + 4 * self._capacity, 4, dtype=np.uintp)
        self._batch = lib.llama_batch(
            0,
            _pointer(self._tokens, ctypes.c_int32),
            None,
            _pointer(self._positions, ctypes.c_int32),
            _pointer(self._num_seq_ids, ctypes.c_int32),
            ctypes.cast(self._seq_ids.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            _pointer(self._wants_logits, ctypes.c_int8),
        )

    @property
    def num_slots(self) -> int:
        return self._form.slots

    @property
    def context_tokens(self) -> int:
        return self._form.context_tokens

    @property
    def max_batch_tokens(self) -> int:
        return self._capacity

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def min_copy_tokens(self) -> int:
        """A prefix shorter than this is sooner read again than copied: in one pool a copy is a note, else a stream."""
        return 8 if self._form.unified else 64

    @property
    def model(self) -> Any:
        """The llama_model, for reading its vocabulary. Raises EngineError after close()."""
        self._check_open()
        return self._model

    @property
    def form(self) -> ContextForm:
        return self._form

    def length(self, slot: int) -> int:
        """Positions that `slot` holds."""
        return int(self._lengths[self._checked_slot(slot)])

    def forward(self, batch: Batch) -> None:
        """As Backend.forward. After an EngineError `length` says what each slot still holds."""
        self._check_open()
        slots, counts = self._check(batch)
        n = batch.num_tokens
        self._tokens[:n] = batch.tokens
        self._positions[:n] = batch.positions
        self._slots[:n] = batch.slots
        self._wants_logits[:n] = batch.wants_logits
        self._batch.n_tokens = n
        self._num_rows = 0
        code = lib.llama_decode(self._context, self._batch)
        if code != 0:
            for slot in slots:
                self._lengths[slot] = lib.llama_memory_seq_pos_max(self._memory, int(slot)) + 1
            what = _DECODE_FAULTS.get(code, f"llama_decode failed with {code}")
            log.error("forward_failed", code=code, num_tokens=n, library=recent_lines())
            raise EngineError(f"The model could not go on: {what}.", code=code)
        self._lengths[slots] += counts
        self._num_rows = batch.num_logit_rows

    def logits(self) -> LogitRows:
        """As Backend.logits."""
        self._check_open()
        lib.llama_synchronize(self._context)
        if self._num_rows == 0:
            return np.empty((0, self._vocab_size), np.float32)
        pointer = lib.llama_get_logits(self._context)
        if not pointer:
            raise EngineError("The model gave no logits.")
        return np.ctypeslib.as_array(pointer, shape=(self._num_rows, self._vocab_size))

    def remove_range(self, slot: int, start: int, end: int = -1) -> None:
        """As Backend.remove_range; a range that would leave a hole is refused, since positions cannot close up."""
        self._check_open()
        length = int(self._lengths[self._checked_slot(slot)])
        if start < 0 or (end != -1 and end < length and end > start):
            raise EngineError(f"Slot {slot} holds {length} positions; {start} to {end} cannot be taken out.")
        if start >= length and start > 0:
            return
        if end != -1 and end <= start:
            return
        # Whole sequences go by an open range: that never fails, even where bookkeeping and library disagree.
        if not lib.llama_memory_seq_rm(self._memory, slot, start if start else -1, -1):
            raise EngineError(f"Slot {slot} cannot forget a part of what it holds.")
        self._lengths[slot] = min(start, length)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """As Backend.copy_prefix. Free when unified; else the whole stream is copied before the next forward."""
        self._check_open()
        held = int(self._lengths[self._checked_slot(source)])
        if source == target or not 0 < length <= held:
            raise EngineError(f"Slot {source} holds {held} positions; {length} of them cannot be copied to {target}.")
        if self._lengths[self._checked_slot(target)]:
            raise EngineError(f"Slot {target} is not empty.")
        if self._form.unified:
            lib.llama_memory_seq_cp(self._memory, source, target, 0, length)
        else:
            # Across streams the library asserts on anything but a full range.
            lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            if length < held:
                lib.llama_memory_seq_rm(self._memory, target, length, -1)
        self._lengths[target] = length

    def check_integrity(self) -> None:
        """Assert that the library holds as many positions per slot as are counted here."""
        for slot in range(self.num_slots):
            held = lib.llama_memory_seq_pos_max(self._memory, slot) + 1
            assert held == self._lengths[slot], (slot, held, int(self._lengths[slot]))

    def close(self) -> None:
        """Free the context, then the model. Views from logits() are dead afterwards."""
        if self._is_closed:
            return
        self._is_closed = True
        lib.llama_synchronize(self._context)
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def _check(self, batch: Batch) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """The slots in the batch and how many tokens each brings; EngineError for anything the library asserts on."""
        n = batch.num_tokens
        if not 0 < n <= self._capacity:
            raise EngineError(f"A batch must have 1 to {self._capacity} tokens, not {n}.")
        num_rows = int(np.count_nonzero(batch.wants_logits))
        if num_rows != batch.num_logit_rows or num_rows > self.num_slots:
            raise EngineError(f"{num_rows} rows of logits were asked for; there are {self.num_slots} slots.")
        tokens, slots, positions = batch.tokens, batch.slots, batch.positions
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._vocab_size:
            raise EngineError(f"A token id is outside 0 to {self._vocab_size - 1}.")
        if int(slots.min()) < 0 or int(slots.max()) >= self.num_slots:
            raise EngineError(f"A slot is outside 0 to {self.num_slots - 1}.")
        counts = np.bincount(slots, minlength=self.num_slots)
        present = np.flatnonzero(counts)
        # Sorted by slot (stable), the k-th token of a slot must stand at its length + k.
        order = np.argsort(slots, kind="stable")
        starts = np.cumsum(counts) - counts
        sorted_slots = slots[order]
        expected = self._lengths[sorted_slots] + np.arange(n) - starts[sorted_slots]
        if not np.array_equal(positions[order], expected):
            raise EngineError("The positions of a slot do not go on where it stands.")
        if int(positions.max()) >= self.context_tokens:
            raise EngineError(f"A slot holds at most {self.context_tokens} positions.")
        return present, counts[present]

    def _checked_slot(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise EngineError(f"There is no slot {slot}; there are {self.num_slots}.")
        return slot

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("The model was given back.")


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
