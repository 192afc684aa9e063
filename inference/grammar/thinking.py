"""A thought of bounded length, and a grammar that begins behind it: `engine.constraint.Constraint` around another.

Owns how many tokens of thought an answer has used. Knows no engine and no prompt. Made in the thread of one generation,
then it belongs to the engine's.

Inside a thought everything is allowed, until the budget is used: then the end tag alone. It counts over all thoughts of
an answer, and a used budget allows no other one. The inner constraint sees no token of a thought; one that holds
nothing at the moment (`is_open`) leaves the answer as free as none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from inference.engine.constraint import Constraint, TokenMask
from inference.output.detokenizer import Detokenizer
from inference.output.thinking import ThinkingSplitter, ThinkTags


class ThinkingConstraint:
    """`close_tokens` spell the end tag. `budget` None bounds nothing; `inner` None leaves the answer free.

    Tags that are text, not tokens, are followed as text. With an inner constraint they must be tokens: a token of text
    may hold a tag's end and the answer's beginning. `end_tokens` then may not come in a thought.
    """

    def __init__(
        self,
        tags: ThinkTags,
        close_tokens: Sequence[int],
        token_bytes: Callable[[int], bytes],
        *,
        vocab_size: int,
        starts_inside: bool = False,
        budget: int | None = None,
        inner: Constraint | None = None,
        end_tokens: Sequence[int] = (),
    ) -> None:
        assert inner is None or tags.are_tokens, "an inner constraint needs tags that are tokens"
        self._tags = tags
        self._close_tokens = tuple(close_tokens)
        self._token_bytes = token_bytes
        self._splitter = ThinkingSplitter(tags, starts_inside=starts_inside)
        self._detokenizer = Detokenizer()
        self._budget = budget
        self._inner = inner
        self._has_begun = False  # the answer itself
        self._num_closing = 0  # tokens of the end tag that were forced already
        self.num_used = 0
        everything = np.full((vocab_size + 31) // 32, 0xFFFFFFFF, np.uint32)
        self._free = everything
        self._in_thought = _without(everything, end_tokens) if inner is not None else everything
        self._closing = [_only(vocab_size, token) for token in self._close_tokens]
        self._thought_over = _without(everything, [tags.open_id]) if tags.open_id is not None else everything

    @property
    def is_complete(self) -> bool:
        return self._inner is not None and not self._splitter.is_thinking and self._inner.is_complete

    @property
    def is_open(self) -> bool:
        return self.mask() is self._free

    def mask(self) -> TokenMask:
        if self._splitter.is_thinking:
            return self._closing[self._num_closing] if self._is_used else self._in_thought
        if self._inner is None or self._inner.is_open:
            return self._thought_over if self._is_used else self._free
        if self._has_begun or self._is_used or self._tags.open_id is None:
            return self._inner.mask()
        return _with(self._inner.mask(), self._tags.open_id)

    def accept(self, token: int) -> None:
        """Raises as the inner constraint does."""
        was_inside, was_used = self._splitter.is_thinking, self._is_used
        if self._tags.are_tokens and token == self._tags.open_id:
            self._splitter.open()
        elif self._tags.are_tokens and token == self._tags.close_id:
            self._splitter.close()
        else:
            self._splitter.feed(self._detokenizer.feed(self._token_bytes(token)))
        if self._splitter.is_thinking:
            if was_inside and was_used:
                self._num_closing = min(self._num_closing + 1, len(self._closing) - 1)
            elif was_inside:
                self.num_used += 1
            return
        self._num_closing = 0
        if not was_inside and self._inner is not None:
            self._has_begun = True
            self._inner.accept(token)

    @property
    def _is_used(self) -> bool:
        return self._budget is not None and self.num_used >= self._budget


def _only(vocab_size: int, token: int) -> TokenMask:
    return _with(np.zeros((vocab_size + 31) // 32, np.uint32), token)


def _with(mask: TokenMask, token: int) -> TokenMask:
    mask = mask.copy()
    mask[token >> 5] |= np.uint32(1 << (token & 31))
    return mask


def _without(mask: TokenMask, tokens: Sequence[int]) -> TokenMask:
    if not tokens:
        return mask
    mask = mask.copy()
    for token in tokens:
        mask[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
    return mask
