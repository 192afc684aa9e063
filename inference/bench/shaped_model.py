"""Writes GGUF files of SmolLM3's shape in any size: random weights, real structure, finite logits.

What a speed depends on is real: the architecture (`smollm3`, with NoPE on every fourth layer, which llama.cpp's graph
does itself), tensor shapes and their types (Q4_K, Q6_K and F32 as Q4_K_M mixes them), the size of the vocabulary, the
`smaug-bpe` pre-tokenizer and the ids of the special tokens. The answers are noise. Benchmarks and tests use it where
the real file cannot be had; `gguf`, a development dependency, is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.bench import shaped_vocabulary
from inference.bench.shaped_vocabulary import Vocabulary
from inference.errors import ConfigError
from inference.prompt.kit import SENTENCEPIECE

BLOCK_VALUES = 256  # of Q4_K and Q6_K alike
BLOCK_BYTES = {"Q4_K": 144, "Q6_K": 210}
POOL_BLOCKS = 131_101  # odd: rows that are cut from it one after the other all differ, 128,256 of them too
LOGIT_SPREAD = 2.5  # standard deviation: sharp enough to be a choice, flat enough for a sampler to have work

# ChatML, for the copy inside the file; the catalog's override replaces it where it applies.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model. `width` and `ffn` are multiples of 256, `vocab` counts the special tokens too."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    context_tokens: int

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.kv_heads) < 1 or self.context_tokens < BLOCK_VALUES:
            raise ConfigError("A model has at least one layer, one head and 256 tokens of context.")
        if self.width % BLOCK_VALUES or self.ffn % BLOCK_VALUES or min(self.width, self.ffn) < BLOCK_VALUES:
            raise ConfigError(f"width and ffn must be multiples of {BLOCK_VALUES}, not {self.width} and {self.ffn}.")
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ConfigError(f"heads ({self.heads}) must divide the width, and kv_heads ({self.kv_heads}) the heads.")
        if self.vocab < shaped_vocabulary.NUM_SPECIAL * 4:
            raise ConfigError(f"vocab must be at least {shaped_vocabulary.NUM_SPECIAL * 4}, not {self.vocab}.")

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * self.kv_heads


TINY = Shape(layers=4, width=256, ffn=512, heads=4, kv_heads=1, vocab=3072, context_tokens=2048)
SMOLLM3_3B = Shape(layers=36, width=2048, ffn=11008, heads=16, kv_heads=4, vocab=128_256, context_tokens=65_536)
SHAPES = {"tiny": TINY, "smollm3-3b": SMOLLM3_3B}


@dataclass(frozen=True)
class Tensor:
    """One tensor to be written; `kind` is Q4_K, Q6_K or F32, `spread` the standard deviation of its weights."""

    name: str
    kind: str
    rows: int
    columns: int
    spread: float = 0.0

    @property
    def num_blocks(self) -> int:
        return self.rows * self.columns // BLOCK_VALUES

    @property
    def num_bytes(self) -> int:
        return self.columns * 4 if self.kind == "F32" else self.num_blocks * BLOCK_BYTES[self.kind]


def tensors(shape: Shape) -> Iterator[Tensor]:
    """All tensors in file order. Each matrix keeps the size of what it is applied to."""
    width, ffn = shape.width, shape.ffn

    def matrix(name: str, kind: str, rows: int, columns: int) -> Tensor:
        return Tensor(f"{name}.weight", kind, rows, columns, 1 / math.sqrt(columns))

    yield Tensor("token_embd.weight", "Q6_K", shape.vocab, width, LOGIT_SPREAD / math.sqrt(width))
    yield Tensor("output_norm.weight", "F32", 1, width)
    for layer in range(shape.layers):
        at = f"blk.{layer}"
        finer = "Q6_K" if _is_finer(layer, shape.layers) else "Q4_K"
        yield Tensor(f"{at}.attn_norm.weight", "F32", 1, width)
        yield Tensor(f"{at}.ffn_norm.weight", "F32", 1, width)
        yield matrix(f"{at}.attn_q", "Q4_K", width, width)
        yield matrix(f"{at}.attn_k", "Q4_K", shape.kv_width, width)
        yield matrix(f"{at}.attn_v", finer, shape.kv_width, width)
        yield matrix(f"{at}.attn_output", "Q4_K", width, width)
        yield matrix(f"{at}.ffn_gate", "Q4_K", ffn, width)
        yield matrix(f"{at}.ffn_up", "Q4_K", ffn, width)
        yield matrix(f"{at}.ffn_down", finer, width, ffn)


def _is_finer(layer: int, layers: int) -> bool:
    """Whether Q4_K_M gives attn_v and ffn_down of this layer six bits: the outer eighths and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


class BlockPool:
    """Random blocks of one quantized type, made once and handed out again and again from another place."""

    def __init__(self, kind: str, random: np.random.Generator, num_blocks: int) -> None:
        self._kind = kind
        self._random = random
        size = BLOCK_BYTES[kind]
        self._blocks = np.frombuffer(random.bytes(num_blocks * size), np.uint8).reshape(num_blocks, size).copy()
        # Any bits are weights; only the scales must be sane. gguf cannot quantize to these types itself.
        if kind == "Q4_K":  # d and dmin (f16), 12 bytes of 6-bit scales and mins, 128 of 4-bit values
            self._blocks[:, 4:12] = 0b10100000  # with 0 below: all eight scales and mins are 32
            self._blocks[:, 12:16] = 0
        else:  # Q6_K: 128 + 64 bytes of 6-bit values, 16 signed scales, d (f16)
            self._blocks[:, 192:208] = 8 + self._blocks[:, 192:208] % 9

    def parts(self, num_blocks: int, spread: float) -> Iterator[npt.NDArray[np.uint8]]:
        """Arrays that hold `num_blocks` together. Each is to be used before the next is asked for."""
        if self._kind == "Q4_K":  # a weight is d * 32 * q - dmin * 32, q in 0..15: centred by dmin = 7.5 d
            step = spread / (32 * 4.61)
            self._blocks[:, :4].view(np.float16)[:] = step, step * 7.5
        else:  # d * scale * (q - 32), scale 8..16, q in 0..63
            self._blocks[:, 208:].view(np.float16)[:] = spread / (12.3 * 18.5)
        start = int(self._random.integers(len(self._blocks)))
        while num_blocks:
            part = self._blocks[start : start + num_blocks]
            yield part
            num_blocks -= len(part)
            start = 0


def write(
    path: Path,
    shape: Shape = TINY,
    *,
    seed: int = 7,
    pre: str = "smaug-bpe",
    template: str = TEMPLATE,
    vocabulary: Vocabulary | None = None,
    architecture: str = "smollm3",
) -> Path:
    """Write a model to `path` and return it. Memory stays flat whatever its size.

    `vocabulary` None is SmolLM3's kind; another one sets the size of the model's, whatever `shape` says. An
    `architecture` is one whose tensors are named alike, as "llama".

    Raises:
        ConfigError: the package gguf is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise ConfigError("Writing a model needs the Python package gguf, which is not installed here.") from None
    vocabulary = vocabulary or shaped_vocabulary.smollm3(shape.vocab)
    shape = replace(shape, vocab=len(vocabulary.tokens))
    unfinished = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(unfinished, architecture)
    _add_metadata(writer, shape, pre, template, vocabulary)
    for tensor in tensors(shape):
        kind = gguf.GGMLQuantizationType[tensor.kind]
        form = (tensor.columns,) if tensor.kind == "F32" else (tensor.rows, tensor.num_bytes // tensor.rows)
        dtype = np.dtype(np.float32 if tensor.kind == "F32" else np.uint8)
        writer.add_tensor_info(tensor.name, form, dtype, tensor.num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()

    random = np.random.default_rng(seed)
    num_blocks = min(POOL_BLOCKS, max(tensor.num_blocks for tensor in tensors(shape)) | 1)
    pools = {kind: BlockPool(kind, random, num_blocks) for kind in BLOCK_BYTES}
    alignment = writer.data_alignment
    with unfinished.open("r+b") as file:
        file.seek(-(-unfinished.stat().st_size // alignment) * alignment)
        for tensor in tensors(shape):
            if tensor.kind == "F32":
                np.ones(tensor.columns, np.float32).tofile(file)
            else:
                for part in pools[tensor.kind].parts(tensor.num_blocks, tensor.spread):
                    part.tofile(file)
            file.write(b"\0" * (-tensor.num_bytes % alignment))
    unfinished.replace(path)
    return path


def _add_metadata(writer: Any, shape: Shape, pre: str, template: str, vocabulary: Vocabulary | None = None) -> None:
    import gguf

    writer.add_name(next((f"Random {name}" for name, known in SHAPES.items() if known == shape), "Random SmolLM3"))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(5_000_000.0)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_layer_norm_rms_eps(1e-6)
    _add_vocabulary(writer, vocabulary or shaped_vocabulary.smollm3(shape.vocab), pre)
    writer.add_chat_template(template)


def _add_vocabulary(writer: Any, vocabulary: Vocabulary, pre: str) -> None:
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    writer.add_vocab_size(len(ids))
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.model == SENTENCEPIECE:
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(vocabulary.scores)
        writer.add_add_space_prefix(vocabulary.adds_space)
    else:
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(ids[vocabulary.bos])
    writer.add_eos_token_id(ids[vocabulary.eos])
    writer.add_pad_token_id(ids[vocabulary.pad])
    writer.add_add_bos_token(vocabulary.adds_bos)
