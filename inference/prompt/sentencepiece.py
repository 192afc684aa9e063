"""SentencePiece-style BPE (GGUF's tokenizer `llama`) with llama.cpp's ids: neighbours merge by the score of the whole.

Owns that merge loop and the marks for spaces and bytes. Knows nothing of special tokens but that they are not in its
vocabulary. Made and called by `prompt.tokenizer`; thread-safe.

Why not the `tokenizers` library: its BPE ranks pairs, one after another. Here it is the merged token that has a score,
so all pairs that make one token are equal, and so are tokens of one score; which of them comes first is the one
further left in the text. No order of pairs says that ("aba" and "bab" over `ab` and `ba` of one score). Nor does a
pair need two tokens there: a character that is none can still merge.

llama.cpp does not read `tokenizer.ggml.remove_extra_whitespaces` for these models, so it is not followed here either.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from inference.errors import ModelFileError

SPACE = "\u2581"  # stands for a space; one that is in a text reads as a space as well
KEPT_WORDS = 32_768  # words whose ids are remembered
KEPT_CHARS = 24  # in a word that is


class SentencePiece:
    """`vocab` is text -> id without special tokens, `byte_ids` the 256 tokens `<0x00>` to `<0xFF>`, in order."""

    def __init__(
        self, vocab: Mapping[str, int], scores: Sequence[float], byte_ids: Sequence[int], *, adds_space: bool
    ) -> None:
        self._vocab = {text: (-scores[token], token) for text, token in vocab.items()}
        self._byte_ids = byte_ids
        self.needs_begins = adds_space
        self._longest = max(map(len, vocab), default=1)
        # Two characters that stand side by side in no token never meet in one: a text can be cut between them.
        self._neighbours = {text[at : at + 2] for text in vocab for at in range(len(text) - 1)}
        self._remembered = lru_cache(KEPT_WORDS)(self._merged)

    def encode(self, text: str, *, begins: bool = True) -> list[int]:
        """`begins`: the text stands first, or after a special token; some vocabularies write a space before it."""
        if begins and self.needs_begins and text:
            text = " " + text
        ids: list[int] = []
        for word in self._words(text.replace(" ", SPACE)):
            ids += self._remembered(word) if len(word) <= KEPT_CHARS else self._merged(word)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode` for each, in a text's midst where that makes a difference."""
        return [self.encode(text, begins=False) for text in texts]

    def bytes_of(self, text: str) -> bytes:
        """What an ordinary token of that text stands for."""
        return text.replace(SPACE, " ").encode()

    def _words(self, text: str) -> Iterator[str]:
        start, neighbours = 0, self._neighbours
        for at in range(1, len(text)):
            if text[at - 1 : at + 1] not in neighbours:
                yield text[start:at]
                start = at
        if text:
            yield text[start:]

    def _merged(self, word: str) -> tuple[int, ...]:
        """Ids of a word: the best pair of neighbours becomes one piece until none is a token."""
        pieces = list(word)
        before, after = list(range(-1, len(word) - 1)), list(range(1, len(word) + 1))
        after[-1] = -1
        waiting: list[tuple[float, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            length = len(pieces[left]) + len(pieces[right])
            if length <= self._longest and (found := self._vocab.get(pieces[left] + pieces[right])):
                heapq.heappush(waiting, (found[0], left, right, length))

        for right in range(1, len(word)):
            consider(right - 1, right)
        while waiting:
            _, left, right, length = heapq.heappop(waiting)
            # One of them may have become part of another piece meanwhile, or have grown.
            if not pieces[left] or not pieces[right] or len(pieces[left]) + len(pieces[right]) != length:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            following = after[left] = after[right]
            if following >= 0:
                before[following] = left
                consider(left, following)
            if before[left] >= 0:
                consider(before[left], left)
        ids: list[int] = []
        for piece in pieces:
            if not piece:
                continue
            known = self._vocab.get(piece)
            if known is not None:
                ids.append(known[1])
            else:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
        return tuple(ids)


def byte_ids(tokens: Sequence[str]) -> list[int]:
    """The tokens that stand for single bytes. Raises ModelFileError: one is missing, so not every text has ids."""
    places = {text: token for token, text in enumerate(tokens) if text.startswith("<0x")}
    try:
        return [places[f"<0x{byte:02X}>"] for byte in range(256)]
    except KeyError as missing:
        raise ModelFileError(
            f"The model's vocabulary lacks the token {missing.args[0]}, so it cannot spell every text.",
            token=missing.args[0],
        ) from None
