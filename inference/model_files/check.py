"""What a model file must be for a worker to answer with it, as far as its header tells.

Refuses only what is known never to work, and says what the file is instead; what llama.cpp supports beyond that is
llama.cpp's to say. Called by the catalog once a file was found; pure.
"""

from __future__ import annotations

import re

from inference.errors import ModelFileError
from inference.model_files.gguf_header import GgufHeader

_ENCODER = "a model that makes vectors of texts and writes none"
_DIFFUSION = "a diffusion model, which does not write from left to right"
_DRAFT = "a draft model, which only guesses for another one"
_SOUND = "a model of sounds"
_UNSERVABLE = {
    "clip": "the part of a model that looks at images (mmproj); name the model's main file",
    **dict.fromkeys(
        (
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
            "t5encoder",
        ),
        _ENCODER,
    ),
    "t5": "a model with an encoder and a decoder, which workers here do not serve",
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    **dict.fromkeys(("eagle3", "dflash", "gemma4-assistant"), _DRAFT),
    **dict.fromkeys(("wavtokenizer-dec", "qwen3tts", "pockettts"), _SOUND),
}
_KINDS = {
    "adapter": "a LoRA adapter, to be used beside its model",
    "mmproj": _UNSERVABLE["clip"],
    "imatrix": "the statistics of a quantization",
    "controlvector": "a control vector",
}
_SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def check(header: GgufHeader) -> None:
    """
    Raises:
        ModelFileError: `header` is of a file that cannot be served; one sentence says why.
    """
    kind = header.text("general.type", "model")
    architecture = header.architecture
    if kind in _KINDS:
        raise _bad(header, f"is {_KINDS[kind]}")
    if architecture in _KINDS | _UNSERVABLE:
        raise _bad(header, f"is {(_KINDS | _UNSERVABLE)[architecture]} (architecture {architecture})")
    part = _SPLIT_NAME.search(header.path.name)
    num_parts = max(header.number("split.count", 0), int(part[2]) if part else 0)
    if num_parts > 1:
        number = header.number("split.no", int(part[1]) - 1 if part else 0) + 1
        raise _bad(header, f"is part {number} of {num_parts} of a split model; join them (llama-gguf-split --merge)")
    if not header.tensors:
        raise _bad(header, "holds a vocabulary or settings but no weights")
    _check_shape(header)
    _check_vocabulary(header)


def _check_shape(header: GgufHeader) -> None:
    """That metadata and weights are of one model: llama.cpp ends the process over some contradictions."""
    width, layers = header.number_here("embedding_length"), header.num_layers
    if width < 1 or layers < 1:
        raise _bad(header, "does not say how many layers it has, or how wide they are")
    embeddings = header.tensor("token_embd.weight")
    if embeddings is None:
        raise _bad(header, "lacks the tensor token_embd.weight")
    vocab = header.num_vocab_tokens
    if len(embeddings.shape) != 2 or embeddings.shape[0] != width or (vocab and embeddings.shape[1] != vocab):
        raise _bad(header, f"does not fit itself: its embeddings are {embeddings.shape}, not {(width, vocab)}")
    for name in ("attention.head_count", "attention.head_count_kv"):
        header.per_layer(name)
    present = {match[1] for t in header.tensors if (match := re.match(r"blk\.(\d+)\.", t.name))}
    missing = next((layer for layer in range(layers) if str(layer) not in present), None)
    if missing is not None:
        raise _bad(header, f"lacks the weights of layer {missing}, of {layers}")


def _check_vocabulary(header: GgufHeader) -> None:
    """That every token is there once, with its kind: llama.cpp ends the process otherwise, or reads beyond the list."""
    tokens = header.strings("tokenizer.ggml.tokens")
    seen: set[str] = set()
    for number, token in enumerate(tokens):
        # Bytes that are no text all look like U+FFFD here; llama.cpp gives empty tokens names of their own.
        if token in seen and token and "\ufffd" not in token:
            raise _bad(header, f"has two tokens of one text: {token[:40]!r}, the second is {number}")
        seen.add(token)
    for name in ("token_type", "scores"):
        values = header.get(f"tokenizer.ggml.{name}", list)
        if values is not None and len(values) < len(tokens):
            raise _bad(header, f"gives {len(values)} of tokenizer.ggml.{name} for {len(tokens)} tokens")


def _bad(header: GgufHeader, what: str) -> ModelFileError:
    return ModelFileError(f"The model file {header.path} {what}.", path=str(header.path))
