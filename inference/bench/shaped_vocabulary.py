"""Vocabularies for the models that `shaped_model` writes: SmolLM3's kind, and a small SentencePiece one.

Owns which tokens there are, of which types, and how they merge; no weights. Pure.
"""

from __future__ import annotations

import itertools
import random
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inference.bench.workload import WORDS
from inference.prompt.kit import BYTE_LEVEL, SENTENCEPIECE, TokenType
from inference.prompt.sentencepiece import SPACE

NUM_SPECIAL = 256

# The last 256 ids, in SmolLM3's places; those between are reserved.
CONTROL = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 4: "<|pad|>", 11: "<|im_start|>", 12: "<|im_end|>"}
USER_DEFINED = {
    2: "<think>",
    3: "</think>",
    13: "<tool_response>",
    14: "</tool_response>",
    15: "<tool_call>",
    16: "</tool_call>",
}

# The first ids of the SentencePiece one, with its bytes behind them, and the last ones.
PIECE_CONTROL = ("<unk>", "<s>", "</s>")
TURNS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
PIECE_USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "\n\n", "\n\n\n", "  ")
PIECE_TEMPLATE = (
    "{{- bos_token -}}{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

WHOLE_WORD = "unmerged"

_TEMPLATE_FILE = Path(__file__).parents[1] / "prompt" / "templates" / "smollm3.jinja"
_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other dogs think about this thing in the morning light "
    "system user assistant 123 456 2026 it's I'll we're don't naïve Zürich こんにちは 你好 Привет "
).split()
# What merges in more than one way, and runs.
_TANGLES = (
    "abab baba banana ananas aaaa ---- ==== .... !!! ''' //// 1000 2020 नमस्ते مرحبا สวัสดี 한국어 e\u0301e\u0301".split()
)


@dataclass(frozen=True)
class Vocabulary:
    """`model` is the kind as GGUF names it. `scores` go with SENTENCEPIECE, `merges` (`left right`) with BYTE_LEVEL."""

    model: str
    tokens: Sequence[str]
    types: Sequence[int]
    bos: str
    eos: str
    pad: str
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    adds_bos: bool = False
    adds_space: bool = False


def smollm3(size: int) -> Vocabulary:
    """`size` tokens, SmolLM3's special ones last."""
    tokens, merges = byte_level_words(size - NUM_SPECIAL)
    names = CONTROL | USER_DEFINED
    special = [names.get(i, f"<|reserved_special_token_{i}|>") for i in range(NUM_SPECIAL)]
    types = [TokenType.USER_DEFINED if i in USER_DEFINED else TokenType.CONTROL for i in range(NUM_SPECIAL)]
    return Vocabulary(
        BYTE_LEVEL,
        tokens + special,
        [TokenType.NORMAL] * len(tokens) + types,
        bos=CONTROL[0],
        eos=CONTROL[12],
        pad=CONTROL[4],
        merges=merges,
    )


def byte_level_words(size: int) -> tuple[list[str], list[str]]:
    """`size` tokens without special ones, and their merges.

    Bytes first, then known words built up from the left, then letters upon letters until it is full. Words with the
    space before them come before all else, so that each of a benchmark's words is one token.
    """
    alphabet = byte_alphabet()
    tokens, merges, known = list(alphabet), [], set(alphabet)

    def merge(left: str, letter: str) -> None:
        if left + letter not in known and len(tokens) < size:
            known.add(left + letter)
            tokens.append(left + letter)
            merges.append(f"{left} {letter}")

    for text in [*(" " + word for word in (*WORDS, *_CORPUS, *_template_words())), *_CORPUS]:
        letters = [alphabet[b] for b in text.encode()]
        for end in range(1, len(letters)):
            merge("".join(letters[:end]), letters[end])
    small, space = string.ascii_lowercase, alphabet[ord(" ")]
    for length in itertools.count(1):
        for left in map("".join, itertools.product((space, *small), *[small] * (length - 1))):
            if len(tokens) == size:
                return tokens, merges
            if left in known:
                for letter in small:
                    merge(left, letter)
    raise AssertionError("letters do not end")


def byte_level_pairs(texts: Iterable[str], *, seed: int = 7) -> Vocabulary:
    """Every two bytes that are neighbours in `texts` merge, in any order: ids tell where a pre-tokenizer cut."""
    alphabet = byte_alphabet()
    pairs = sorted({pair for text in texts for pair in itertools.pairwise(text.encode())})
    random.Random(seed).shuffle(pairs)
    merges = [f"{alphabet[left]} {alphabet[right]}" for left, right in pairs]
    special = [CONTROL[0], CONTROL[12], CONTROL[4]]
    # A word that no merges lead to tells whether a pre-tokenizer's words are looked up whole.
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges), alphabet[ord(" ")] + WHOLE_WORD, *special]
    types = [TokenType.NORMAL] * (len(tokens) - len(special)) + [TokenType.CONTROL] * len(special)
    bos, eos, pad = special
    return Vocabulary(BYTE_LEVEL, tokens, types, bos=bos, eos=eos, pad=pad, merges=merges)


def sentencepiece(size: int, *, adds_space: bool = True) -> Vocabulary:
    """`size` tokens: three control tokens, all bytes, pieces of words by score, then turns and user-defined ones.

    Three pieces each share a score, as conversions have it, so that their places decide.
    """
    last = [*TURNS, *PIECE_USER_DEFINED]
    first = [*PIECE_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces: dict[str, None] = {}
    words = [word for word in dict.fromkeys((*WORDS, *_CORPUS, *_template_words())) if len(word) < 24]
    for word in [*_TANGLES, *(SPACE * n for n in (2, 3, 4, 8)), *(SPACE + word for word in words), *words]:
        for end in range(2, len(word) + 1):
            pieces.setdefault(word[:end])
            pieces.setdefault(word[-end:])
    letters = [SPACE, *string.printable[:94], *sorted({c for word in (*_TANGLES, *words) for c in word} - {"ü", "を"})]
    room = size - len(first) - len(last) - len(dict.fromkeys(letters))
    ordered = [*pieces][:room]
    ordered += [f"{a}{b}{c}" for a, b, c in itertools.product(string.ascii_lowercase, repeat=3)][: room - len(ordered)]
    middle = [*dict.fromkeys((*ordered, *letters))]
    scores = [0.0] * len(first) + [-float(place // 3) for place in range(len(middle))] + [0.0] * len(last)
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    types += [TokenType.NORMAL] * len(middle) + [TokenType.CONTROL] * len(TURNS)
    return Vocabulary(
        SENTENCEPIECE,
        [*first, *middle, *last],
        [*types, *[TokenType.USER_DEFINED] * len(PIECE_USER_DEFINED)],
        bos="<s>",
        eos="</s>",
        pad="<unk>",
        scores=scores,
        adds_bos=True,
        adds_space=adds_space,
    )


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in of each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in printable}
    for index, byte in enumerate(b for b in range(256) if b not in table):
        table[byte] = chr(256 + index)
    return [table[b] for b in range(256)]


def _template_words() -> list[str]:
    return re.findall(r"[A-Za-z]+", _TEMPLATE_FILE.read_text(encoding="utf-8"))
