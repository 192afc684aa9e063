"""LlamaBackend: the engine's Backend over one llama_context.

Owns the context, the arrays that llama_decode reads, and the count of positions each slot holds. Knows nothing of
requests, prompts or sampling. One thread: the engine's; only construction happens elsewhere.

A failed assertion inside the library ends the process, so every call is checked here first: sizes, token ids, slot
ids, and that each slot's positions go on exactly where it stands. Positions are never shifted (llama_memory_seq_add):
SmolLM3 leaves every fourth layer without RoPE and the library's shift does not know that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import structlog

from inference.engine.batch import Batch
from inference.engine.logits import Excerpt, LogitRows, SlotState
from inference.errors import EngineError
from inference.llama.excerpts import Excerpts
from inference.llama.layout import arrange, plain
from inference.llama.native_log import recent_lines
from inference.model_files.memory_estimate import GRAPH_TOKENS_CPU

log = structlog.get_logger(__name__)

Places = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

_ONES = np.ones(256, np.intp)

KV_TYPES = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}
_YARN = 2  # LLAMA_ROPE_SCALING_TYPE_YARN

_DECODE_FAULTS = {
    1: "no room in the KV cache",
    2: "aborted",
    -1: "the batch was refused",
}


@dataclass(frozen=True, kw_only=True)
class ContextForm:
    """The size and kind of a context. `context_tokens` of one slot is a multiple of 256, and so is `pool_tokens`, what
    a unified pool holds where that is less than slots x context (else 0).

    `unified` puts all slots into one pool of cells: copying a prefix is free and a mixed batch is one graph, but the
    attention of every slot scans the whole used pool. Separate streams cut a mixed batch into several graphs.
    """

    context_tokens: int
    slots: int
    batch_tokens: int
    kv_type: str
    threads: int
    unified: bool
    pool_tokens: int = 0
    graph_tokens: int = GRAPH_TOKENS_CPU
    yarn_factor: float = 1.0

    @property
    def total_tokens(self) -> int:
        most = self.context_tokens * self.slots
        return min(most, self.pool_tokens) if self.unified and self.pool_tokens else most

    @property
    def library_batch_tokens(self) -> int:
        """Room for a batch and, where holes are bridged, a filler row of every other slot."""
        return max(self.batch_tokens, self.slots) + self.slots


def new_context(model: Any, form: ContextForm) -> Any | None:
    """A llama_context of that form, or None when the library could not make it (as a rule: no memory)."""
    params = lib.llama_context_default_params()
    params.n_ctx = form.total_tokens
    params.n_batch = form.library_batch_tokens
    params.n_ubatch = min(params.n_batch, form.graph_tokens)
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

    def __init__(
        self, model: Any, context: Any, form: ContextForm, *, is_async: bool = False, has_excerpts: bool = False
    ) -> None:
        self._model = model
        self._context = context
        self._form = form
        self._is_async = is_async
        self._memory = lib.llama_get_memory(context)
        self._vocab_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        self._capacity = max(form.batch_tokens, form.slots)
        # Where a graph costs the host more than a row costs the device, holes between streams are bridged.
        self._bridges_holes = is_async and not form.unified
        self._excerpts = Excerpts(context, form.slots, self._vocab_size) if has_excerpts else None
        self._lengths = np.zeros(form.slots, np.int32)
        self._num_rows = 0
        self._output_places: Places = np.zeros(0, np.int64)  # in llama.cpp's batch, of the rows with logits
        self._is_closed = False
        room = form.library_batch_tokens
        self._tokens = np.zeros(room, np.int32)
        self._positions = np.zeros(room, np.int32)
        self._slots = np.zeros(room, np.int32)
        self._wants_logits = np.zeros(room, np.int8)
        self._num_seq_ids = np.ones(room, np.int32)
        # seq_id[i] points at the i-th slot number: each token belongs to exactly one sequence.
        first = self._slots.ctypes.data
        self._seq_ids = np.arange(first, first + 4 * room, 4, dtype=np.uintp)
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
    def pool_tokens(self) -> int:
        return self._form.total_tokens

    @property
    def is_async(self) -> bool:
        return self._is_async

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
    def min_host_tokens(self) -> int:
        """A prefix shorter than this is sooner read again than copied to host memory, perhaps for nothing, and back. On
        2 CPU cores SmolLM2 reads a token in 3.4 ms and copies it both ways in 0.02; an H100 reads one of the 3B shape
        in 0.05, so there only long prefixes are worth that everybody waits for the copy."""
        return 1024 if self._is_async else 32

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
        layout = arrange(batch, self._lengths, self.context_tokens) if self._bridges_holes else plain(batch)
        n = len(layout.tokens)
        self._tokens[:n] = layout.tokens
        self._positions[:n] = layout.positions
        self._slots[:n] = layout.slots
        self._wants_logits[:n] = layout.wants_logits
        self._batch.n_tokens = n
        self._num_rows = 0
        code = lib.llama_decode(self._context, self._batch)
        for slot in layout.fillers:
            lib.llama_memory_seq_rm(self._memory, slot, int(self._lengths[slot]), -1)
        if code != 0:
            for slot in slots:
                self._lengths[slot] = lib.llama_memory_seq_pos_max(self._memory, int(slot)) + 1
            what = _DECODE_FAULTS.get(code, f"llama_decode failed with {code}")
            log.error("forward_failed", code=code, num_tokens=n, library=recent_lines())
            raise EngineError(f"The model could not go on: {what}.", code=code)
        self._lengths[slots] += counts
        self._num_rows = batch.num_logit_rows
        if self._excerpts is not None:
            self._output_places = layout.wants_logits.nonzero()[0]

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

    @property
    def wants_low_slots(self) -> bool:
        return self._bridges_holes

    @property
    def gives_excerpts(self) -> bool:
        return self._excerpts is not None

    def set_whole(self, slot: int, is_whole: bool) -> None:
        """As Backend.set_whole."""
        self._check_open()
        if self._excerpts is not None:
            (self._excerpts.detach if is_whole else self._excerpts.attach)(self._checked_slot(slot))

    def excerpt(self, rows: Sequence[int]) -> Excerpt:
        """As Backend.excerpt."""
        self._check_open()
        assert self._excerpts is not None, "this backend gives no excerpts"
        return self._excerpts.read(rows, int(self._output_places[rows[0]]))

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

    def save(self, slot: int) -> SlotState:
        """As Backend.save."""
        self._check_open()
        size = int(lib.llama_state_seq_get_size(self._context, self._checked_slot(slot)))
        state = np.empty(size, np.uint8)
        written = int(lib.llama_state_seq_get_data(self._context, _pointer(state, ctypes.c_uint8), size, slot))
        if not 0 < written <= size:
            raise EngineError(f"Slot {slot} could not be copied ({written} of {size} bytes).")
        return state[:written]

    def restore(self, slot: int, state: SlotState) -> bool:
        """As Backend.restore."""
        self._check_open()
        if self._lengths[self._checked_slot(slot)]:
            raise EngineError(f"Slot {slot} is not empty.")
        read = int(lib.llama_state_seq_set_data(self._context, _pointer(state, ctypes.c_uint8), len(state), slot))
        if read != len(state):
            lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
            log.warning("slot_not_restored", num_bytes=len(state), library=recent_lines(3))
            return False
        self._lengths[slot] = lib.llama_memory_seq_pos_max(self._memory, slot) + 1
        return True

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
        if self._excerpts is not None:
            self._excerpts.close()
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def _check(self, batch: Batch) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.intp]]:
        """The slots in the batch and how many tokens each brings; EngineError for anything the library asserts on."""
        n = batch.num_tokens
        if not 0 < n <= self._capacity:
            raise EngineError(f"A batch must have 1 to {self._capacity} tokens, not {n}.")
        num_rows = int(np.count_nonzero(batch.wants_logits))
        if num_rows != batch.num_logit_rows or num_rows > self.num_slots:
            raise EngineError(f"{num_rows} rows of logits were asked for; there are {self.num_slots} slots.")
        tokens, slots, positions = batch.tokens, batch.slots, batch.positions
        if batch.num_rows == n and self._are_next(tokens, slots, positions):  # most steps; costs a third of the rest
            return slots, _ONES[:n]
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

    def _are_next(self, tokens: Ints, slots: Ints, positions: Ints) -> bool:
        """Whether each of these single tokens is one, and goes on where its slot stands; slots rise."""
        return bool(
            slots[0] >= 0
            and slots[-1] < self.num_slots
            and (slots[1:] > slots[:-1]).all()
            and np.array_equal(positions, self._lengths[slots])
            and positions.max() < self.context_tokens
            and tokens.min() >= 0
            and tokens.max() < self._vocab_size
        )

    def _checked_slot(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise EngineError(f"There is no slot {slot}; there are {self.num_slots}.")
        return slot

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("The model was given back.")


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
