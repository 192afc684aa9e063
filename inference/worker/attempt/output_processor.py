"""The answer of one attempt as text: tokens in, news out, and what its finish says of it.

Owns the tokens so far, the output pipeline, the loop detector and the running hash. Knows no engine and no Redis.
`attempt.generation` calls it, in the thread of one generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal

from inference.coordination.log_view import Log, tool_calls_of
from inference.engine.request import Logprobs
from inference.messages.generation import Delta
from inference.output.deltas import OutputPipeline
from inference.output.loop_detector import LoopDetector
from inference.worker.attempt.output_events import News, NewsWithLogprobs


class AnswerText:
    """Begins with what the log holds already. `num_chars` and `content_sha256` tell of content alone."""

    def __init__(self, earlier: Log) -> None:
        self.tokens = [token for event in earlier.events for token in event.tokens]
        self.num_chars = 0
        self._earlier = earlier
        self._hash = hashlib.sha256()
        self._pipeline: OutputPipeline | None = None
        self._loop = LoopDetector(0)
        self._news: NewsWithLogprobs | None = None
        self._count(delta for event in earlier.events for delta in event.deltas)

    def begin(self, pipeline: OutputPipeline, *, loop_tokens: int = 0) -> bool:
        """Go on with `pipeline`, after it was fed the tokens so far.

        Returns False, and takes no pipeline, when they give another text than the log holds: the model here is not
        the one that began. `loop_tokens` is for the loop detector, which counts those tokens too.
        """
        self._loop = LoopDetector(loop_tokens)
        for token in self.tokens:
            self._loop.push(token)
        replayed = [delta for token in self.tokens for delta in pipeline.push(token)]
        kinds: tuple[Literal["content", "reasoning"], ...] = ("content", "reasoning")
        for kind in kinds:
            if "".join(delta.text for delta in replayed if delta.kind == kind) != self._earlier.text(kind):
                return False
        if tool_calls_of(replayed) != self._earlier.tool_calls:
            return False
        self._pipeline = pipeline
        return True

    def tell_logprobs(self, token_bytes: Callable[[int], bytes]) -> None:
        """From now on tokens go into the log together with their logprobs."""
        self._news = NewsWithLogprobs(token_bytes)

    def push(self, token: int, logprobs: Logprobs | None = None) -> News:
        """What may go into the log now."""
        assert self._pipeline is not None
        pipeline = self._pipeline
        began_at, was_apart = pipeline.num_content_chars, pipeline.is_thinking or pipeline.is_near_call
        self.tokens.append(token)
        self._loop.push(token)
        deltas = self._count(pipeline.push(token))
        if self._news is None:
            return News((token,), deltas)
        return self._news.push(
            token,
            deltas,
            logprobs,
            began_at=began_at,
            num_chars=pipeline.num_content_chars,
            num_shown=pipeline.num_shown_chars,
            is_apart=was_apart or pipeline.is_thinking or pipeline.is_near_call,
        )

    def flush(self, *, is_cut: bool = False) -> News:
        """What was still held back. Nothing more may be pushed. `is_cut`: not the model ended the answer."""
        if self._pipeline is None:
            return News()
        deltas = self._count(self._pipeline.flush(is_cut=is_cut))
        if self._news is None:
            return News((), deltas)
        return self._news.flush(deltas, self._pipeline.num_shown_chars, is_stopped=self.stopped)

    @property
    def stopped(self) -> bool:
        """A stop string was completed, or the one call made."""
        return self._pipeline is not None and self._pipeline.stopped

    @property
    def num_calls(self) -> int:
        """Good tool calls so far."""
        return self._pipeline.num_calls if self._pipeline else 0

    @property
    def is_looping(self) -> bool:
        """Its end only repeats itself."""
        return self._loop.is_looping

    @property
    def num_reasoning_tokens(self) -> int:
        return self._pipeline.num_reasoning_tokens if self._pipeline else 0

    @property
    def content_sha256(self) -> str:
        return self._hash.hexdigest()

    def _count(self, deltas: Iterable[Delta]) -> tuple[Delta, ...]:
        counted = tuple(deltas)
        for delta in counted:
            if delta.kind == "content":
                self._hash.update(delta.text.encode())
                self.num_chars += len(delta.text)
        return counted
