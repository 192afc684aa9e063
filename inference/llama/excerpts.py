"""Has the device cut excerpts of the logits (`engine/sampling/excerpt.py`), inside llama.cpp's own graph.

llama.cpp lets samplers add nodes behind the logits of their sequence. Ours adds none of its own for each row but, with
the first row of a graph, the few that cut all rows at once: the maximum of each block, the blocks with the largest, and
their logits; and the softmax, of which one block tells the mass of the whole row. Rows whose sequence has such a
sampler are not copied whole to the host.

Owns the callbacks, which llama.cpp calls while it builds a graph (on the thread that calls llama_decode), and reading
what came of it. The interface is marked experimental in llama.cpp, so `self_test` compares excerpts with whole rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
from llama_cpp import _ggml

from inference.engine.logits import Excerpt
from inference.engine.sampling.excerpt import NUM_BLOCKS
from inference.errors import EngineError

# Of a block. Of 32 rows of 128,256 logits an H100's host sampled in 1.7 ms with blocks of 128, in 0.7 with 32, and the
# device took no longer to find the best of four times as many.
_WIDTHS = (32, 16, 8)
_MIN_BLOCKS = 4 * NUM_BLOCKS
_POOL_MAX = 0  # GGML_OP_POOL_MAX


class _Tensor(ctypes.Structure):
    """The head of ggml_tensor, as far as its views are described."""


_Tensor._fields_ = [
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", ctypes.c_void_p * 10),
    ("view_src", ctypes.c_void_p),
    ("view_offs", ctypes.c_size_t),
]


def block_width(vocab_size: int) -> int | None:
    """Logits in a block, or None where a vocabulary cannot be cut evenly into enough blocks."""
    return next((w for w in _WIDTHS if vocab_size % w == 0 and vocab_size // w >= _MIN_BLOCKS), None)


class Excerpts:
    """Excerpts of `context`'s logits, at first for every one of `num_slots` sequences.

    Raises:
        EngineError: llama.cpp did not take the samplers.
    """

    def __init__(self, context: Any, num_slots: int, vocab_size: int) -> None:
        width = block_width(vocab_size)
        assert width is not None, vocab_size
        self._context = context
        self._vocab_size = vocab_size
        self._width = width
        self._ggml = _Functions()
        self._views: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        self._cut: dict[int, tuple[int, int, int]] = {}  # logits of all rows -> blocks, their maxima, their numbers
        self._keep = [
            lib.llama_sampler_i_name(lambda _: b"excerpt"),
            lib.llama_sampler_i_apply(lambda *_: None),
            lib.llama_sampler_i_backend_init(lambda *_: True),
            lib.llama_sampler_i_backend_apply(self._apply),
            lib.llama_sampler_i_backend_reset(lambda _: self._cut.clear()),
        ]
        self._interface = lib.llama_sampler_i()
        for name, callback in zip(("name", "apply", "backend_init", "backend_apply", "backend_reset"), self._keep):
            setattr(self._interface, name, callback)
        self._chains: list[Any | None] = [None] * num_slots
        for slot in range(num_slots):
            self.attach(slot)

    def attach(self, slot: int) -> None:
        """From the next forward on this slot's rows come as excerpts. llama.cpp plans its graphs afresh for it."""
        if self._chains[slot] is not None:
            return
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init(ctypes.byref(self._interface), None))
        if not lib.llama_set_sampler(self._context, slot, chain):
            lib.llama_sampler_free(chain)
            raise EngineError("llama.cpp does not sample on this device.")
        self._chains[slot] = chain

    def detach(self, slot: int) -> None:
        """From the next forward on this slot's rows come whole."""
        chain = self._chains[slot]
        if chain is not None:
            lib.llama_set_sampler(self._context, slot, None)
            lib.llama_sampler_free(chain)
            self._chains[slot] = None

    def close(self) -> None:
        """Before the context is freed."""
        for slot in range(len(self._chains)):
            self.detach(slot)

    def read(self, places: Sequence[int], first_output: int) -> Excerpt:
        """The excerpts of output rows `places` (rising) of the last forward, which must be attached ones.

        `first_output`: the place in llama.cpp's batch of the row `places[0]`.
        """
        num_rows = places[-1] - places[0] + 1
        values, maxima, blocks = self._tables(first_output, num_rows)
        if num_rows > len(places):
            chosen = np.array(places) - places[0]
            values, maxima, blocks = values[chosen], maxima[chosen], blocks[chosen]
        size = NUM_BLOCKS * self._width
        return Excerpt(values[:, :size], maxima, blocks, values[:, size:])

    def _tables(self, first_output: int, num_rows: int) -> tuple[Any, Any, Any]:
        """Views: llama.cpp keeps each kind of result in rows as long as the vocabulary, all kinds in one buffer."""
        pointer = lib.llama_get_sampled_logits_ith(self._context, first_output)  # waits for the device
        if not pointer:
            raise EngineError("The model gave no excerpt of its logits.")
        address = ctypes.addressof(pointer.contents)
        key = (address, num_rows)
        tables = self._views.get(key)
        if tables is None:
            if any(known != address for known, _ in self._views):
                self._views.clear()  # the buffer has moved
            others = [
                ctypes.addressof(getter(self._context, first_output).contents)
                for getter in (lib.llama_get_sampled_probs_ith, lib.llama_get_sampled_candidates_ith)
            ]
            tables = self._views[key] = (
                self._view(address, num_rows, (NUM_BLOCKS + 1) * self._width, np.float32),
                self._view(others[0], num_rows, NUM_BLOCKS, np.float32),
                self._view(others[1], num_rows, NUM_BLOCKS, np.int32),
            )
        return tables

    def _view(self, address: int, num_rows: int, width: int, kind: type) -> Any:
        buffer = (ctypes.c_char * (4 * ((num_rows - 1) * self._vocab_size + width))).from_address(address)
        return np.ndarray((num_rows, width), kind, memoryview(buffer), strides=(4 * self._vocab_size, 4))

    def _apply(self, _sampler: Any, ggml_context: int, _graph: int, data: Any) -> None:
        found = data.contents
        row = ctypes.cast(found.logits, ctypes.POINTER(_Tensor)).contents
        parent = int(row.view_src or found.logits)  # without a parent: llama.cpp only counts what we would add
        cut = self._cut.get(parent)
        if cut is None:
            cut = self._cut[parent] = self._cut_all(ggml_context, parent)
        number = row.view_offs // (4 * int(row.ne[0])) if row.view_src else 0
        sizes = ((NUM_BLOCKS + 1) * self._width, NUM_BLOCKS, NUM_BLOCKS)
        found.logits, found.probs, found.candidates = (
            self._ggml.view_1d(ggml_context, table, size, number * size * 4) for table, size in zip(cut, sizes)
        )

    def _cut_all(self, ggml_context: int, parent: int) -> tuple[int, int, int]:
        """Nodes over the logits of all rows: the chosen blocks and the softmax of the first (width, blocks + 1, rows),
        the blocks' maxima (1, blocks, rows) and their numbers (blocks, rows)."""
        ggml = self._ggml
        shape = ctypes.cast(parent, ctypes.POINTER(_Tensor)).contents.ne
        num_rows = int(shape[1])
        num_blocks = int(shape[0]) // self._width

        def as_blocks(rows: int) -> int:
            return int(ggml.reshape_3d(ggml_context, rows, self._width, num_blocks, num_rows))

        maxima = ggml.pool_1d(ggml_context, parent, _POOL_MAX, self._width, self._width, 0)
        places = ggml.top_k(ggml_context, maxima, NUM_BLOCKS)
        chosen = ggml.get_rows(ggml_context, as_blocks(parent), places)
        first = ggml.view_2d(ggml_context, places, 1, num_rows, NUM_BLOCKS * 4, 0)
        share = ggml.get_rows(ggml_context, as_blocks(ggml.soft_max(ggml_context, parent)), first)
        largest = ggml.get_rows(ggml_context, ggml.reshape_3d(ggml_context, maxima, 1, num_blocks, num_rows), places)
        return ggml.concat(ggml_context, chosen, share, 1), largest, places


class _Functions:
    """The functions of libggml that add nodes to a graph; llama-cpp-python does not bind them."""

    def __init__(self) -> None:
        base = ctypes.CDLL(str(_ggml.libggml_base_path / "libggml-base.so"))
        p, i64, size, i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_int

        def bind(name: str, *kinds: Any) -> Any:
            function = getattr(base, f"ggml_{name}")
            function.argtypes, function.restype = list(kinds), p
            return function

        self.pool_1d = bind("pool_1d", p, p, i32, i32, i32, i32)
        self.top_k = bind("top_k", p, p, i32)
        self.get_rows = bind("get_rows", p, p, p)
        self.soft_max = bind("soft_max", p, p)
        self.concat = bind("concat", p, p, p, i32)
        self.reshape_3d = bind("reshape_3d", p, p, i64, i64, i64)
        self.view_1d = bind("view_1d", p, p, i64, size)
        self.view_2d = bind("view_2d", p, p, i64, i64, size, size)
