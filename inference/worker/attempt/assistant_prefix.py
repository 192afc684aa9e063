"""An answer's beginning that is given: its tokens, and how a wholly given answer is recited.

Owns both. Knows no log and no Redis. `attempt.generation` uses it, in the thread of one generation; a recital speaks to
the attempt's inbox from a thread of its own, as the engine would.
"""

from __future__ import annotations

import threading
from uuid import UUID

from inference.engine.request import Ended, Submission, Token
from inference.messages.generation import FinishReason, Opening
from inference.output.thinking import ThinkTags
from inference.prompt.builder import Prompt
from inference.prompt.tokenizer import Tokenizer

BURSTS_PER_SECOND = 50.0  # of a recital; a token more often than that leaves together with others


def opening_tokens(opening: Opening | None, prompt: Prompt, tokenizer: Tokenizer, tags: ThinkTags | None) -> list[int]:
    """Token ids of the given text, as they follow `prompt`; the thought is wrapped in `tags`, and left open when
    nothing follows it. Without tags a thought cannot be written, and is left out.
    """
    if opening is None:
        return []
    tokens: list[int] = []

    def begins() -> bool:
        return tokenizer.begins_after(tokens or prompt.tokens.tolist()[-1:])

    if tags is not None and (opening.reasoning or (prompt.starts_thinking and opening.content)):
        if not prompt.starts_thinking:
            tokens += tokenizer.encode_scaffold(tags.open + "\n", begins=begins())
        tokens += tokenizer.encode_text(opening.reasoning, begins=begins())
        if opening.content:
            tokens += tokenizer.encode_scaffold(f"\n{tags.close}\n", begins=begins())
    return tokens + tokenizer.encode_text(opening.content, begins=begins())


class Recital:
    """Stands in for the engine where the whole answer is given: the same outputs, at a pace, from no model."""

    def __init__(self, tokens: list[int], tokens_per_second: float) -> None:
        self._tokens = tokens
        self._rate = tokens_per_second
        self._cancelled = threading.Event()

    def submit(self, submission: Submission) -> None:
        """Recite what follows `submission.generated`, then end."""
        threading.Thread(target=self._run, args=(submission,), name="recital", daemon=True).start()

    def cancel(self, key: UUID) -> None:
        self._cancelled.set()

    def _run(self, submission: Submission) -> None:
        burst = max(1, round(self._rate / BURSTS_PER_SECOND)) if self._rate else len(self._tokens) or 1
        for begin in range(len(submission.generated), len(self._tokens), burst):
            for token in self._tokens[begin : begin + burst]:
                submission.sink(Token(token))
            if self._rate and self._cancelled.wait(burst / self._rate):
                submission.sink(Ended(FinishReason.CANCELLED, 0, None))
                return
        submission.sink(Ended(FinishReason.STOP, 0, None))
