"""Text -> token ids and back, exactly as llama.cpp does it for byte-level BPE, with scaffold and text kept apart.

Owns the pre-tokenizer patterns and the rule that text can never become a special token: special tokens are not in
the BPE vocabulary at all, they are matched in scaffold before BPE runs. Built from a PromptKit; thread-safe.
"""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Regex
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from inference.errors import ModelFileError
from inference.prompt.kit import PromptKit, TokenType

# Stands inside content where a special token's text would begin, so that no search finds it; never reaches BPE.
BREAKER = "\ufdd2"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL

# GGUF's tokenizer.ggml.pre -> patterns that split one after another (what a pattern leaves is a piece too).
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "smaug-bpe": (_LLAMA3,),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
}
# llama.cpp takes a whole word that is a token without looking at the merges for these.
_IGNORES_MERGES = frozenset({"llama-bpe", "llama3"})
ADDS_BOS = frozenset({"llama-bpe", "llama3"})  # where the file does not say


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: character -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def check_supported(tokenizer_model: str, pre_tokenizer: str) -> None:
    """Raises ModelFileError: this kind of tokenizer cannot be rebuilt here."""
    if tokenizer_model != "gpt2":
        raise ModelFileError(
            f"The model's tokenizer is of kind {tokenizer_model!r}; only byte-level BPE ('gpt2') is supported.",
            tokenizer=tokenizer_model,
        )
    if pre_tokenizer not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelFileError(
            f"The model's pre-tokenizer {pre_tokenizer!r} is not known here (known: {known}).", tokenizer=pre_tokenizer
        )


class Tokenizer:
    """Encodes and decodes with the tokenizer that `kit` describes."""

    def __init__(self, kit: PromptKit) -> None:
        """Takes 0.5 s for 128,256 tokens. Raises ModelFileError: the pre-tokenizer is unknown."""
        check_supported("gpt2", kit.pre_tokenizer)
        self._kit = kit
        self._special = kit.special_ids
        vocab = {t: i for i, t in enumerate(kit.tokens) if t not in self._special}
        self._bpe = BpeTokenizer(
            BPE(vocab, _merges(kit, vocab), ignore_merges=kit.pre_tokenizer in _IGNORES_MERGES, fuse_unk=False)
        )
        splits: list[Any] = [Split(Regex(p), "isolated") for p in PRE_TOKENIZERS[kit.pre_tokenizer]]
        self._bpe.pre_tokenizer = Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])
        # Longest first: an alternation takes the first that matches.
        texts = sorted((t for t in self._special if t), key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._special_start = re.compile(f"(?=(?:{self._special_pattern.pattern}))(.)", re.DOTALL)
        # A control token has no text of its own, but a tag that the output part looks for must be seen.
        shown = {kit.thinking.open, kit.thinking.close} if kit.thinking else set()
        shown |= {"<tool_call>", "</tool_call>", "<code>", "</code>"}
        self._shown = frozenset(self._special[t] for t in shown if t in self._special)

    @property
    def vocab_size(self) -> int:
        return len(self._kit.tokens)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of `text`; none of them is a control, unknown or user-defined token, whatever the text says."""
        return self._bpe.encode(text, add_special_tokens=False).ids

    def encode_scaffold(self, text: str) -> list[int]:
        """Token ids of text that a template wrote: special tokens' texts become these tokens."""
        ids: list[int] = []
        at = 0
        for match in self._special_pattern.finditer(text):
            if match.start() > at:
                ids += self.encode_text(text[at : match.start()].replace(BREAKER, ""))
            ids.append(self._special[match[0]])
            at = match.end()
        if at < len(text):
            ids += self.encode_text(text[at:].replace(BREAKER, ""))
        return ids

    def broken(self, text: str) -> str:
        """`text` with a BREAKER inside every special token's text, wherever one begins."""
        return self._special_start.sub(rf"\1{BREAKER}", text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; b"" for control tokens but the thinking and tool tags.

        Bytes of one token may be half a character.
        """
        kind = self._kit.token_types[token]
        text = self._kit.tokens[token]
        if kind == TokenType.USER_DEFINED or token in self._shown:
            return text.encode()
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
            return b""
        try:
            return bytes(_BYTE_OF[c] for c in text)
        except KeyError:  # a normal token outside the byte alphabet stands for itself
            return text.encode()

    def id_of(self, special_text: str) -> int | None:
        """The id of a special token, None when the model has no such one."""
        return self._special.get(special_text)


def _merges(kit: PromptKit, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Merges as pairs; those that touch a special token are left out, so BPE cannot build one from pieces."""
    pairs = []
    for merge in kit.merges:
        left, _, right = merge.partition(" ")
        if left in vocab and right in vocab and left + right in vocab:
            pairs.append((left, right))
    return pairs
