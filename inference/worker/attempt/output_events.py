"""What an attempt's tokens become in the log: themselves, the text they complete, their logprobs.

Owns the tokens that wait where logprobs are told. Knows no engine, no pipeline and no log. `output_processor` drives
it, in the thread of one generation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.engine.request import Logprobs
from inference.messages.generation import Delta, TokenLogprob


@dataclass(frozen=True)
class News:
    """Tokens for the log, with the text they complete and the logprobs of the content among them."""

    tokens: tuple[int, ...] = ()
    deltas: tuple[Delta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass
class _Waiting:
    token: int
    deltas: Sequence[Delta]
    began_at: int  # in the content: where this token's text begins
    logprob: TokenLogprob | None
    is_ready: bool


class NewsWithLogprobs:
    """Tokens that wait until it is sure whether their logprobs are told.

    Told are those of the content, up to a stop string: a token of which any text is shown, and none after it. As long
    as its text is held back, because it may begin a stop string, that is open; so the token waits, and what comes after
    it. For the next attempt could not know the logprob of a token that is in the log without it. Text goes with the
    token that completes it, so tokens in the log always give the text in the log.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._waiting: deque[_Waiting] = deque()

    def push(
        self,
        token: int,
        deltas: Sequence[Delta],
        logprobs: Logprobs | None,
        *,
        began_at: int,
        num_chars: int,
        num_shown: int,
        is_apart: bool,
    ) -> News:
        """`began_at` and `num_chars`: characters of content before and after this token, held back or not; `num_shown`
        of them are shown. `is_apart`: it came inside a thought or a tool call, or opened or closed one."""
        if is_apart:
            for earlier in self._waiting:
                earlier.is_ready = True  # the thought, or call, is shown without delay
                if earlier.began_at >= num_chars:
                    earlier.logprob = None  # spelled the tag
        is_content = num_chars > began_at or not is_apart
        logprob = self._told(token, logprobs) if logprobs is not None and is_content else None
        self._waiting.append(_Waiting(token, deltas, began_at, logprob, is_ready=not is_content))
        count = 0
        for waiting in self._waiting:
            if not (waiting.is_ready or waiting.began_at < num_shown):
                break
            count += 1
        return self._take(count)

    def flush(self, deltas: Sequence[Delta], num_shown: int, *, is_stopped: bool) -> News:
        """Everything; `deltas` came without a token. After a stop string what was not shown is not told."""
        for waiting in self._waiting:
            if is_stopped and not waiting.is_ready and waiting.began_at >= num_shown:
                waiting.logprob = None
        news = self._take(len(self._waiting))
        return News(news.tokens, (*news.deltas, *deltas), news.logprobs)

    def _take(self, count: int) -> News:
        taken = [self._waiting.popleft() for _ in range(count)]
        return News(
            tuple(one.token for one in taken),
            tuple(delta for one in taken for delta in one.deltas),
            tuple(one.logprob for one in taken if one.logprob is not None),
        )

    def _told(self, token: int, logprobs: Logprobs) -> TokenLogprob:
        top = tuple((self._token_bytes(other), value) for other, value in logprobs.top)
        return TokenLogprob(self._token_bytes(token), logprobs.chosen, top)
