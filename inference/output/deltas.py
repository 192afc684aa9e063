"""Token id -> deltas: detokenizer, thinking splitter and stop strings in one chain.

Owns the text state of one attempt. The same ids always give the same text, however they are grouped, so an attempt
that goes on with another's tokens rebuilds this state by pushing them again. Knows no tokenizer: `token_bytes` is
handed in. `worker.generation` calls it, in the thread of one generation, never on the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from inference.output.detokenizer import Detokenizer
from inference.output.stop_strings import StopStrings
from inference.output.thinking import ThinkingSplitter, ThinkTags
from inference.protocol import Delta


class OutputPipeline:
    """`push` every token the engine gives, in order, then `flush` once.

    `think_tags` None: the model has no reasoning, everything is content. `starts_thinking`: the prompt opened the
    thinking block already. `stop` ends content only; reasoning may hold such a text.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        think_tags: ThinkTags | None = None,
        starts_thinking: bool = False,
        stop: Sequence[str] = (),
    ) -> None:
        self._token_bytes = token_bytes
        self._detokenizer = Detokenizer()
        self._splitter = ThinkingSplitter(think_tags, starts_inside=starts_thinking) if think_tags else None
        self._stop = StopStrings(stop)
        self._open_id = think_tags.open_id if think_tags and think_tags.are_tokens else None
        self._close_id = think_tags.close_id if think_tags and think_tags.are_tokens else None
        self.num_reasoning_tokens = 0  # the tags count with what they enclose

    @property
    def stopped(self) -> bool:
        """A stop string was completed; nothing that follows belongs to the answer."""
        return self._stop.stopped

    def push(self, token_id: int) -> list[Delta]:
        """The deltas this token completes; often none, when it ends inside a character or a possible stop string."""
        if self.stopped:
            return []
        splitter = self._splitter
        if splitter is None:
            return self._shown([Delta("content", self._detokenizer.feed(self._token_bytes(token_id)))])
        was_thinking = splitter.is_thinking
        if token_id == self._open_id:
            deltas = splitter.feed(self._detokenizer.flush()) + splitter.open()
        elif token_id == self._close_id:
            deltas = splitter.feed(self._detokenizer.flush()) + splitter.close()
        else:
            deltas = splitter.feed(self._detokenizer.feed(self._token_bytes(token_id)))
        if was_thinking or splitter.is_thinking:
            self.num_reasoning_tokens += 1
        return self._shown(deltas)

    def flush(self) -> list[Delta]:
        """No more tokens follow: everything still held back. Nothing once `stopped`."""
        text = self._detokenizer.flush()
        if self.stopped:
            return []
        if self._splitter is None:
            deltas = self._shown([Delta("content", text)])
        else:
            deltas = self._shown(self._splitter.feed(text) + self._splitter.flush())
        return merged([*deltas, Delta("content", self._stop.flush())])

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas with content run through the stop strings; reasoning after a completed one is dropped too."""
        shown: list[Delta] = []
        for delta in deltas:
            if self.stopped:
                break
            shown.append(Delta("content", self._stop.feed(delta.text)) if delta.kind == "content" else delta)
        return merged(shown)


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same text in as few deltas as possible: neighbours of one kind joined, empty ones gone."""
    result: list[Delta] = []
    for delta in deltas:
        if not delta.text:
            continue
        if result and result[-1].kind == delta.kind:
            result[-1] = Delta(delta.kind, result[-1].text + delta.text)
        else:
            result.append(delta)
    return result
