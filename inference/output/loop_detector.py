"""Says when an answer only repeats itself: its end is one and the same row of tokens, over and over.

Owns the newest tokens of one attempt. Knows nothing of text: a loop is a fact about tokens, and comparing them costs
two microseconds per token. `output_processor` feeds it, in the thread of one generation; the same tokens
give the same verdict at the same place, whichever attempt counts them.

What counts is both length and number: a phrase of up to 128 tokens, word for word, at least 8 times in a row and over
at least `num_tokens`. A table's rows, a list's items and a loop's output differ somewhere in each line, and "print a
200 times" ends long before; a model that is caught writes on until its context is full.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

MAX_PERIOD = 128
MIN_PERIODS = 8
CHECK_EVERY = 32  # tokens
MIN_TOKENS = 2 * MAX_PERIOD  # fewer cannot tell the longest periods


class LoopDetector:
    """`num_tokens` 0 never finds a loop; else at least MIN_TOKENS. Once `is_looping`, it stays so."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._window = max(num_tokens, MIN_PERIODS * MAX_PERIOD)
        # Twice the window: the newest tokens stay in one piece, and moving them to the front is rare.
        self._tokens = np.empty(2 * self._window if num_tokens else 0, np.int32)
        self._end = 0  # of what is filled
        self._num_seen = 0
        self.is_looping = False

    def push(self, token: int) -> None:
        if not self._num_tokens or self.is_looping:
            return
        if self._end == len(self._tokens):
            self._tokens[: self._window] = self._tokens[-self._window :]
            self._end = self._window
        self._tokens[self._end] = token
        self._end += 1
        self._num_seen += 1
        if self._num_seen % CHECK_EVERY == 0 and self._num_seen >= self._num_tokens:
            self.is_looping = self._repeats()

    def _repeats(self) -> bool:
        tail = self._tokens[self._end - MIN_TOKENS : self._end]
        # Row i ends MAX_PERIOD - i tokens before the last one does: where it equals the last row, that is a period of
        # the newest tokens. Any longer period of more tokens is a multiple of the shortest (Fine and Wilf), so that
        # one alone has to be followed back.
        rows = sliding_window_view(tail, MAX_PERIOD)
        matches = np.flatnonzero((rows[:-1] == rows[-1]).all(axis=1))
        if not len(matches):
            return False
        period = MAX_PERIOD - int(matches[-1])
        length = max(self._num_tokens, MIN_PERIODS * period)
        if self._num_seen < length:
            return False
        newest = self._tokens[self._end - length : self._end]
        return bool(np.array_equal(newest[period:], newest[:-period]))
