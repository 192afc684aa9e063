"""The answer of one attempt as text: tokens in, deltas out, and what its finish says of it.

Owns the tokens so far, the output pipeline and the running hash. Knows no engine and no Redis. `worker.generation`
calls it, in the thread of one generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

from inference.output.deltas import OutputPipeline
from inference.protocol import Delta, Log


class AnswerText:
    """Begins with what the log holds already. `num_chars` and `content_sha256` tell of content alone."""

    def __init__(self, earlier: Log) -> None:
        self.tokens = [token for event in earlier.events for token in event.tokens]
        self.num_chars = 0
        self._earlier = earlier
        self._hash = hashlib.sha256()
        self._pipeline: OutputPipeline | None = None
        self._count(delta for event in earlier.events for delta in event.deltas)

    def begin(self, pipeline: OutputPipeline) -> bool:
        """Go on with `pipeline`, after it was fed the tokens so far.

        Returns False, and takes no pipeline, when they give another text than the log holds: the model here is not
        the one that began.
        """
        replayed = [delta for token in self.tokens for delta in pipeline.push(token)]
        kinds: tuple[Literal["content", "reasoning"], ...] = ("content", "reasoning")
        for kind in kinds:
            if "".join(delta.text for delta in replayed if delta.kind == kind) != self._earlier.text(kind):
                return False
        self._pipeline = pipeline
        return True

    def push(self, token: int) -> list[Delta]:
        assert self._pipeline is not None
        self.tokens.append(token)
        return self._count(self._pipeline.push(token))

    def flush(self) -> list[Delta]:
        """What the pipeline still held back. Nothing more may be pushed."""
        return self._count(self._pipeline.flush() if self._pipeline else [])

    @property
    def stopped(self) -> bool:
        """A stop string was completed."""
        return self._pipeline is not None and self._pipeline.stopped

    @property
    def num_reasoning_tokens(self) -> int:
        return self._pipeline.num_reasoning_tokens if self._pipeline else 0

    @property
    def content_sha256(self) -> str:
        return self._hash.hexdigest()

    def _count(self, deltas: Iterable[Delta]) -> list[Delta]:
        counted = list(deltas)
        for delta in counted:
            if delta.kind == "content":
                self._hash.update(delta.text.encode())
                self.num_chars += len(delta.text)
        return counted
