"""Text -> token ids and back, exactly as llama.cpp does it, with scaffold and text kept apart.

Owns the rule that text can never become a special token: those are in neither kind of vocabulary at all, they are
matched in scaffold before it. User-defined tokens of nothing but white space (Gemma and OLMo have such runs) are no
special ones: text becomes them, as in training. Built from a PromptKit; thread-safe. The two kinds of vocabulary are
`byte_level` and `sentencepiece`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from typing import Protocol

from inference.errors import ModelFileError
from inference.prompt.byte_level import PRE_TOKENIZERS, ByteLevel
from inference.prompt.kit import BYTE_LEVEL, SENTENCEPIECE, PromptKit, TokenType
from inference.prompt.sentencepiece import SentencePiece, byte_ids

# Stands inside content where a special token's text would begin, so that no search finds it; never reaches a model.
BREAKER = "\ufdd2"


def check_supported(tokenizer_model: str, pre_tokenizer: str) -> None:
    """Raises ModelFileError: this kind of tokenizer cannot be rebuilt here."""
    if tokenizer_model == SENTENCEPIECE:
        return  # it has no pre-tokenizer
    if tokenizer_model != BYTE_LEVEL:
        raise ModelFileError(
            f"The model's tokenizer is of kind {tokenizer_model!r}; byte-level BPE ({BYTE_LEVEL!r}) and "
            f"SentencePiece ({SENTENCEPIECE!r}) are supported.",
            tokenizer=tokenizer_model,
        )
    if pre_tokenizer not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelFileError(
            f"The model's pre-tokenizer {pre_tokenizer!r} is not known here (known: {known}).", tokenizer=pre_tokenizer
        )


class _Encode(Protocol):
    def __call__(self, text: str, /, *, begins: bool) -> list[int]: ...


class Tokenizer:
    """Encodes and decodes with the tokenizer that `kit` describes."""

    def __init__(self, kit: PromptKit) -> None:
        """Takes 0.5 s for 128,256 tokens. Raises ModelFileError: the pre-tokenizer is unknown, or bytes are missing."""
        check_supported(kit.tokenizer, kit.pre_tokenizer)
        self._kit = kit
        self._special = kit.special_ids
        self._special_numbers = frozenset(self._special.values())
        self._blanks = kit.blank_ids
        self._pieces = _pieces(kit)
        self._blank_pattern = _longest_of(self._blanks)
        self._special_pattern = _longest_of(self._special)
        self._special_start = re.compile(f"(?=(?:{self._special_pattern.pattern}))(.)", re.DOTALL)
        # A control token has no text of its own, but a tag that the output part looks for must be seen.
        shown = {kit.thinking.open, kit.thinking.close} if kit.thinking else set()
        shown |= {"<tool_call>", "</tool_call>", "<code>", "</code>"}
        self._shown = frozenset(self._special[t] for t in shown if t in self._special)

    @property
    def vocab_size(self) -> int:
        return len(self._kit.tokens)

    def begins_after(self, tokens: Sequence[int]) -> bool:
        """Whether text after `tokens` is a beginning: see `encode_text`."""
        return not tokens or tokens[-1] in self._special_numbers

    def adds_space(self, tokens: Sequence[int]) -> bool:
        """Whether the space that text after `tokens` begins with is the tokenizer's own and none of the text."""
        return self._pieces.needs_begins and self.begins_after(tokens)

    def encode_text(self, text: str, *, begins: bool = True) -> list[int]:
        """Token ids of `text`; none of them is a special token, whatever the text says.

        `begins`: the text stands first or after a special token; some vocabularies write a space before it there.
        """
        if not self._blanks:
            return self._pieces.encode(text, begins=begins)
        return _encoded(text, self._blank_pattern, self._blanks, self._pieces.encode, begins)

    def encode_batch(self, texts: Sequence[str], *, begins: bool = True) -> list[list[int]]:
        """As `encode_text` for each; several at once go over all cores where the kind of vocabulary can do so."""
        if len(texts) < 2 or self._blanks or (begins and self._pieces.needs_begins):
            return [self.encode_text(text, begins=begins) for text in texts]
        return self._pieces.encode_batch(texts)

    def encode_scaffold(self, text: str, *, begins: bool = True) -> list[int]:
        """Token ids of text that a template wrote: special tokens' texts become these tokens."""

        def encode(part: str, *, begins: bool) -> list[int]:
            return self.encode_text(part.replace(BREAKER, ""), begins=begins)

        return _encoded(text, self._special_pattern, self._special, encode, begins)

    def broken(self, text: str) -> str:
        """`text` with a BREAKER inside every special token's text, wherever one begins."""
        return self._special_start.sub(rf"\1{BREAKER}", text)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; b"" for control tokens but the thinking and tool tags.

        Bytes of one token may be half a character. A space that the tokenizer itself wrote (`adds_space`) is among
        them.
        """
        kind = self._kit.token_types[token]
        text = self._kit.tokens[token]
        if kind == TokenType.BYTE and (byte := re.fullmatch("<0x([0-9A-F]{2})>", text)):
            return bytes.fromhex(byte[1])
        if token in self._shown or (kind == TokenType.USER_DEFINED and text not in self._blanks):
            return text.encode()
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
            return b""
        return self._pieces.bytes_of(text)

    def id_of(self, special_text: str) -> int | None:
        """The id of a special token, None when the model has no such one."""
        return self._special.get(special_text)


def _pieces(kit: PromptKit) -> ByteLevel | SentencePiece:
    vocab = {text: token for token, text in enumerate(kit.tokens) if text and text not in kit.special_ids}
    if kit.tokenizer == BYTE_LEVEL:
        return ByteLevel(kit.pre_tokenizer, vocab, kit.merges)
    ordinary = {text: token for text, token in vocab.items() if kit.token_types[token] != TokenType.BYTE}
    return SentencePiece(ordinary, array("f", kit.scores), byte_ids(kit.tokens), adds_space=kit.adds_space)


def _longest_of(texts: Mapping[str, int]) -> re.Pattern[str]:
    """Finds any of them, the longest where several begin: an alternation takes the first that matches."""
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _encoded(
    text: str, pattern: re.Pattern[str], tokens: Mapping[str, int], encode: _Encode, begins: bool
) -> list[int]:
    """Ids of `text`: what `pattern` finds by `tokens`, what lies between by `encode`."""
    ids: list[int] = []
    at = 0
    for match in pattern.finditer(text):
        if match.start() > at:
            ids += encode(text[at : match.start()], begins=begins)
        ids.append(tokens[match[0]])
        at, begins = match.end(), True
    if at < len(text):
        ids += encode(text[at:], begins=begins)
    return ids
