"""Byte-level BPE with llama.cpp's ids, by the `tokenizers` library: text -> words by a pre-tokenizer -> merges.

Owns the pre-tokenizer patterns by their names in GGUF, and GPT-2's alphabet of bytes. Knows nothing of special tokens
but that they are not in its vocabulary. Made and called by `prompt.tokenizer`; thread-safe.

The library knows the characters of Unicode 16, llama.cpp those of 15: words of the few scripts added between may be
cut in other places. A vocabulary that knows more of them than their bytes is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel as ByteAlphabet
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.pre_tokenizers import Split

_SHORT = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"  # what English writes after an apostrophe
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_SHORT}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_MINICPM5 = rf"{_SHORT}|{_WORD}|\p{{N}}+|{_TAIL}"
_SEED_CODER = rf"{_SHORT}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
# Words whose capitals come first. llama.cpp knows the case of ASCII letters only: any other is both.
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_TAIL}"
_GPT4O = rf"{_CASED[0]}{_SHORT}?|{_CASED[1]}{_SHORT}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
_CJK = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[[\u0800-\u9fa5\uac00-\ud7ff]&&\S]+", r"\p{N}")
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9][0-9][0-9]")

# Patterns that split one after another (what a pattern leaves is a piece too) -> the names GGUF has for them in
# tokenizer.ggml.pre.
_FAMILIES: dict[tuple[str, ...], str] = {
    (_GPT2,): "gpt-2 phi-2 mpt olmo jais trillion exaone4 granite-docling gigachat a.x-4.0 mellum",
    (r"\p{N}", _GPT2): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    (_LLAMA3,): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 smaug-bpe dbrx chatglm-bpe glm4 glm5"
    ),
    (_QWEN2,): "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open kormo grok-2",
    (_QWEN35,): "qwen35",
    (_TEKKEN,): "tekken",
    (_GPT4O,): "gpt-4o llama4 kanana2 talkie minimax-m2",
    (r"\p{N}{1,3}", _CJK, _DEEPSEEK3): "deepseek-v3 hunyuan-dense joyai-llm",
    _DEEPSEEK_CODER: "deepseek-coder",
    _FALCON: "falcon",
    (r"\p{N}{1,3}", _MINICPM5): "minicpm5",
    (_SEED_CODER,): "seed-coder",
}
PRE_TOKENIZERS = {name: patterns for patterns, names in _FAMILIES.items() for name in names.split()}
# A whole word that is a token is taken without looking at the merges for these.
_IGNORES_MERGES = frozenset(
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 glm5 tekken minicpm5".split()
)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class ByteLevel:
    """`vocab` is text -> id without special tokens, `merges` are `left right`, best first."""

    needs_begins = False  # a text has the same ids wherever it stands

    def __init__(self, pre_tokenizer: str, vocab: dict[str, int], merges: Sequence[str]) -> None:
        """Takes 0.5 s for 128,256 tokens. Raises KeyError: the pre-tokenizer is unknown."""
        # A byte that the vocabulary lacks has no id, but it parts what stands left and right of it; the library would
        # join the two. So it gets an id beyond the vocabulary, which is taken out afterwards.
        self._num_ids = max(vocab.values(), default=-1) + 1
        missing = [character for character in _BYTE_OF if character not in vocab]
        self._lacks_bytes = bool(missing)
        known = vocab | {character: self._num_ids + n for n, character in enumerate(missing)}
        self._bpe = BpeTokenizer(
            BPE(known, _pairs(merges, vocab), ignore_merges=pre_tokenizer in _IGNORES_MERGES, fuse_unk=False)
        )
        splits: list[Any] = [Split(Regex(p), "isolated") for p in PRE_TOKENIZERS[pre_tokenizer]]
        self._bpe.pre_tokenizer = Steps([*splits, ByteAlphabet(add_prefix_space=False, use_regex=False)])

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        return self._existing(self._bpe.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode` for each, on all cores."""
        return [self._existing(found.ids) for found in self._bpe.encode_batch_fast(texts, add_special_tokens=False)]

    def bytes_of(self, text: str) -> bytes:
        """What an ordinary token of that text stands for."""
        try:
            return bytes(_BYTE_OF[c] for c in text)
        except KeyError:  # a token outside the byte alphabet stands for itself
            return text.encode()

    def _existing(self, ids: list[int]) -> list[int]:
        return [token for token in ids if token < self._num_ids] if self._lacks_bytes else ids


def _pairs(merges: Sequence[str], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Merges as pairs; those that touch a special token are left out, so BPE cannot build one from pieces."""
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left in vocab and right in vocab and left + right in vocab:
            pairs.append((left, right))
    return pairs
