"""What a loaded model's vocabulary says: special ids, end-of-generation ids, and llama.cpp's own tokenization.

Owns the making of a PromptKit from a model file. Ids come from the file and the library, never from constants:
published documents contradict each other on all of them. Vocabulary calls are read-only and thread-safe.
"""

from __future__ import annotations

import ctypes
from array import array
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from inference.catalog import FALLBACK_TEMPLATE, TEMPLATES, CatalogEntry
from inference.errors import ModelFileError
from inference.llama.native_log import last_words, quiet
from inference.model_files import gguf_header
from inference.model_files.gguf_header import GgufHeader
from inference.prompt.kit import SENTENCEPIECE, PromptKit, TokenType
from inference.prompt.tokenizer import BREAKER, Tokenizer, check_supported

# Mixed scripts, digits, spaces, contractions and emoji: where byte-level BPE implementations have differed.
PROBE_TEXT = (
    "Hello, world! It's 2026-11-28; I'LL pay $1,234.50…\n\n\tdef f(x):\n        return x**2  # naïve\r\n"
    "Grüße aus Zürich — こんにちは世界 你好 Привет مرحبا שלום नमस्ते ไทย 👩‍👩‍👧‍👦🏳️‍🌈   <b>&amp;</b>  \u00a0 end"
)


class Vocabulary:
    """The vocabulary of a loaded (or vocabulary-only) model; dead once the model is freed."""

    def __init__(self, model: Any) -> None:
        self._vocab = lib.llama_model_get_vocab(model)
        self.num_tokens = int(lib.llama_vocab_n_tokens(self._vocab))

    def end_tokens(self) -> frozenset[int]:
        """Every id after which generation ends; it is a set, not the one `eos`."""
        is_end = lib.llama_vocab_is_eog
        return frozenset(i for i in range(self.num_tokens) if is_end(self._vocab, i))

    def token_types(self) -> bytes:
        """One TokenType per id as llama.cpp sees it: it overrides some types of the file."""
        get = lib.llama_vocab_get_attr
        return bytes(_type_of(int(get(self._vocab, i))) for i in range(self.num_tokens))

    @property
    def bos_id(self) -> int | None:
        return _id(lib.llama_vocab_bos(self._vocab))

    @property
    def eos_id(self) -> int | None:
        return _id(lib.llama_vocab_eos(self._vocab))

    @property
    def adds_bos(self) -> bool:
        return bool(lib.llama_vocab_get_add_bos(self._vocab))

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]:
        """llama.cpp's own ids, without begin or end tokens. For checks; prompts go through prompt.Tokenizer.

        With parse_special False it still turns user-defined tokens' texts into these tokens.
        """
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        count = lib.llama_tokenize(self._vocab, data, len(data), ids, room, False, parse_special)
        if count < 0:
            raise ModelFileError(f"llama.cpp could not tokenize a text of {len(data)} bytes ({count}).")
        return list(ids[:count])

    def piece(self, token: int) -> bytes:
        """The bytes of a token as llama.cpp writes them, special ones included."""
        room = 256
        while True:
            buffer = ctypes.create_string_buffer(room)
            size = lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, True)
            if size >= 0:
                return buffer.raw[:size]
            room = -size


def kit_of(
    source: Path | GgufHeader, entry: CatalogEntry, *, model: Any | None = None, context_tokens: int = 0
) -> PromptKit:
    """The prompt kit of a model file, or of one whose header was read already.

    `model` None opens the file's vocabulary for it (0.1 to 0.5 s).

    Raises:
        ModelFileError: not a usable GGUF, or a tokenizer or template that cannot be rebuilt here.
    """
    header = source if isinstance(source, GgufHeader) else gguf_header.read(source)
    check_supported(header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre", "default"))
    if model is not None:
        return _kit(header, entry, Vocabulary(model), context_tokens or entry.context_tokens)
    quiet()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    opened = lib.llama_model_load_from_file(str(header.path).encode(), params)
    if not opened:
        raise ModelFileError(f"llama.cpp cannot open {header.path}: {last_words()}", path=str(header.path))
    try:
        return _kit(header, entry, Vocabulary(opened), context_tokens or entry.context_tokens)
    finally:
        lib.llama_model_free(opened)


def _kit(header: GgufHeader, entry: CatalogEntry, vocabulary: Vocabulary, context_tokens: int) -> PromptKit:
    tokens = header.strings("tokenizer.ggml.tokens")
    if len(tokens) != vocabulary.num_tokens:
        raise ModelFileError(
            f"{header.path} lists {len(tokens)} tokens, llama.cpp sees {vocabulary.num_tokens}.", path=str(header.path)
        )
    end_tokens = vocabulary.end_tokens()
    if not end_tokens:
        raise ModelFileError(f"{header.path} has no token that ends an answer.", path=str(header.path))
    kind = header.text("tokenizer.ggml.model")
    return PromptKit(
        model=entry.name,
        pre_tokenizer=header.text("tokenizer.ggml.pre", "default"),
        tokens=tuple(tokens),
        token_types=vocabulary.token_types(),
        merges=tuple(header.strings("tokenizer.ggml.merges")),
        tokenizer=kind,
        scores=_scores(header, len(tokens)) if kind == SENTENCEPIECE else b"",
        adds_space=kind == SENTENCEPIECE and header.get("tokenizer.ggml.add_space_prefix", bool) is not False,
        chat_template=_template(header, entry),
        context_tokens=context_tokens,
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        add_bos=vocabulary.adds_bos,
        end_tokens=tuple(sorted(end_tokens)),
        # A model whose vocabulary lacks the tags spells them out; the output part finds them as text either way.
        thinking=entry.thinking,
        tools=entry.tools,
        sampling=entry.sampling,
    )


def _scores(header: GgufHeader, num_tokens: int) -> bytes:
    """As PromptKit has them; where the file gives none, all are alike."""
    values = header.get("tokenizer.ggml.scores", list) or [0.0] * num_tokens
    return array("f", values[:num_tokens]).tobytes()


def _template(header: GgufHeader, entry: CatalogEntry) -> str:
    override = entry.own_template
    if not override and (own := header.text("tokenizer.chat_template")):
        return own
    path = TEMPLATES / Path(override or FALLBACK_TEMPLATE).name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFileError(f"The template {entry.template} of {entry.name} cannot be read.") from error


def mismatch(kit_tokenizer: Tokenizer, vocabulary: Vocabulary) -> str:
    """ "" when both tokenizers agree on the probe text, else one sentence saying where they part."""
    probe = kit_tokenizer.broken(PROBE_TEXT).replace(BREAKER, " ")  # Gemma has <b> as a token
    ours = kit_tokenizer.encode_text(probe)
    theirs = vocabulary.tokenize(probe, parse_special=False)
    if ours == theirs:
        return ""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"The rebuilt tokenizer differs from llama.cpp's at token {at} of the probe text."


def _type_of(attributes: int) -> int:
    for flag, kind in (
        (lib.LLAMA_TOKEN_ATTR_CONTROL, TokenType.CONTROL),
        (lib.LLAMA_TOKEN_ATTR_USER_DEFINED, TokenType.USER_DEFINED),
        (lib.LLAMA_TOKEN_ATTR_UNKNOWN, TokenType.UNKNOWN),
        (lib.LLAMA_TOKEN_ATTR_BYTE, TokenType.BYTE),
        (lib.LLAMA_TOKEN_ATTR_UNUSED, TokenType.UNUSED),
    ):
        if attributes & flag:
            return int(kind)
    return int(TokenType.NORMAL)


def _id(token: int) -> int | None:
    return int(token) if token >= 0 else None
