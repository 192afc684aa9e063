"""Writes a tiny model of SmolLM3's architecture as a GGUF: random weights, real structure, 1 MB, made in a second.

NoPE on every fourth layer (llama.cpp's smollm3 graph does that itself), four query heads to one key-value head, tied
embeddings, Q4_K with Q6_K and F32 as in Q4_K_M, the `smaug-bpe` pre-tokenizer and SmolLM3's special tokens.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LAYERS, WIDTH, FFN, HEADS, KV_HEADS = 4, 256, 512, 4, 1
CONTEXT_TOKENS = 2048
CONTROL = ("<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# ChatML with a date, for the copy inside the file; the catalog's override replaces it where it applies.
TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)

_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other dogs think about this thing in the morning light "
    "Metadata Custom Instructions system user assistant Reasoning Mode helpful Today Date Knowledge Cutoff "
    "123 456 2026 it's I'll we're don't naïve Zürich こんにちは 你好 Привет "
).split()


def _byte_alphabet() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in printable}
    for index, byte in enumerate(b for b in range(256) if b not in table):
        table[byte] = chr(256 + index)
    return [table[b] for b in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens without the special ones, and merges: bytes, then the corpus's words built up from the left."""
    alphabet = _byte_alphabet()
    tokens, merges, known = list(alphabet), [], set(alphabet)
    for word in _CORPUS:
        for text in (word, " " + word):
            letters = [alphabet[b] for b in text.encode()]
            left = letters[0]
            for letter in letters[1:]:
                if left + letter not in known:
                    known.add(left + letter)
                    tokens.append(left + letter)
                    merges.append(f"{left} {letter}")
                left += letter
    return tokens, merges


def write(path: Path, *, seed: int = 7, pre: str = "smaug-bpe", template: str = TEMPLATE) -> Path:
    """Write the model to `path` and return it."""
    tokens, merges = vocabulary()
    special = [*CONTROL, *USER_DEFINED]
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(CONTROL)
    types += [gguf.TokenType.USER_DEFINED] * len(USER_DEFINED)
    tokens = tokens + special
    while len(tokens) % 256:
        tokens.append(f"<|reserved_{len(tokens)}|>")
        types.append(gguf.TokenType.CONTROL)

    writer = gguf.GGUFWriter(path, "smollm3")
    writer.add_name("Tiny SmolLM3")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5_000_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|begin_of_text|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|end_of_text|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)

    random = np.random.default_rng(seed)
    q4, q6 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K
    kv_width = WIDTH // HEADS * KV_HEADS
    _add(writer, random, "token_embd.weight", len(tokens), WIDTH, q6)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        writer.add_tensor(f"{at}.attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{at}.ffn_norm.weight", np.ones(WIDTH, np.float32))
        _add(writer, random, f"{at}.attn_q.weight", WIDTH, WIDTH, q4)
        _add(writer, random, f"{at}.attn_k.weight", kv_width, WIDTH, q4)
        _add(writer, random, f"{at}.attn_v.weight", kv_width, WIDTH, q6)
        _add(writer, random, f"{at}.attn_output.weight", WIDTH, WIDTH, q4)
        _add(writer, random, f"{at}.ffn_gate.weight", FFN, WIDTH, q4)
        _add(writer, random, f"{at}.ffn_up.weight", FFN, WIDTH, q4)
        _add(writer, random, f"{at}.ffn_down.weight", WIDTH, FFN, q6)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, random: np.random.Generator, name: str, rows: int, columns: int, kind: int) -> None:
    """Random blocks of the quantized type: any bits are weights, only the scales must be sane numbers.

    The gguf package cannot quantize to K types, so the blocks are filled directly.
    """
    blocks = rows * columns // 256
    scale = np.float16(0.06)
    if kind == gguf.GGMLQuantizationType.Q4_K:  # d, dmin (f16), 12 bytes of scales, 128 of 4-bit values
        data = random.integers(0, 256, (blocks, 144), dtype=np.uint8)
        halves = data[:, :4].view(np.float16)
        # A value is d*scale*q - dmin*min with q in 0..15: equal scales and mins centre it at d*scale*7.5.
        halves[:, 0] = scale / 40
        halves[:, 1] = scale / 40 * 7.5
        data[:, 4:12] = 32  # scales and mins of sub-blocks 0 to 3
        data[:, 12:16] = 0x00
    else:  # Q6_K: 128 + 64 bytes of 6-bit values, 16 signed scales, d (f16)
        data = random.integers(0, 256, (blocks, 210), dtype=np.uint8)
        data[:, 192:208] = random.integers(8, 17, (blocks, 16), dtype=np.uint8)
        data[:, 208:210] = np.full((blocks, 1), scale / 250, np.float16).view(np.uint8)
    row_bytes = data.size // rows
    writer.add_tensor(name, data.reshape(rows, row_bytes), raw_dtype=gguf.GGMLQuantizationType(kind))
