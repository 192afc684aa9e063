"""Writes GGUF files of a few hundred bytes: a header of every kind of value and two tensors, to be damaged at will."""

from __future__ import annotations

import struct
from pathlib import Path

U32, STRING, ARRAY = 4, 8, 9
ALIGNMENT = 32
F32 = 0


def write(
    path: Path,
    architecture: str = "llama",
    *,
    more: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] | None = None,
    version: int = 3,
    byte_order: str = "<",
) -> Path:
    """One layer of width 32 over two tokens. Every byte counts: the file ends where its last tensor does."""
    values = [
        text_value("general.architecture", architecture),
        number_value(f"{architecture}.embedding_length", 32),
        number_value(f"{architecture}.block_count", 1),
        *more,
    ]
    if tensors is None:
        tensors = (tensor_entry("token_embd.weight", (32, 2), 0), tensor_entry("blk.0.attn_norm.weight", (32,), 256))
    counts = struct.pack(f"{byte_order}IQQ", version, len(tensors), len(values))
    head = b"GGUF" + counts + b"".join(values) + b"".join(tensors)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + bytes(256 + 128 if tensors else 0))
    return path


def text_value(key: str, text: str) -> bytes:
    return string(key) + struct.pack("<I", STRING) + string(text)


def number_value(key: str, number: int) -> bytes:
    return string(key) + struct.pack("<II", U32, number)


def strings_value(key: str, texts: list[str]) -> bytes:
    return list_head(key, STRING, len(texts)) + b"".join(string(text) for text in texts)


def numbers_value(key: str, numbers: list[int]) -> bytes:
    return list_head(key, U32, len(numbers)) + struct.pack(f"<{len(numbers)}I", *numbers)


def list_head(key: str, kind: int, count: int) -> bytes:
    return string(key) + struct.pack("<IIQ", ARRAY, kind, count)


def tensor_entry(name: str, shape: tuple[int, ...], offset: int, kind: int = F32) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


TOKENS = (
    strings_value("tokenizer.ggml.tokens", ["a", "<|im_end|>"]),
    numbers_value("tokenizer.ggml.token_type", [1, 3]),
    number_value("tokenizer.ggml.eos_token_id", 1),
    number_value("llama.attention.head_count", 4),
    number_value("llama.attention.head_count_kv", 2),
    number_value("llama.feed_forward_length", 64),
    text_value("tokenizer.chat_template", "{{ messages }}"),
)
