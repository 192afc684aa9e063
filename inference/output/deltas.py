"""Token id -> deltas: detokenizer, thinking splitter, tool calls and stop strings in one chain.

Owns the text state of one attempt. The same ids always give the same text, however they are grouped, so an attempt
that goes on with another's tokens rebuilds this state by pushing them again. Knows no tokenizer: `token_bytes` is
handed in. `attempt.generation` calls it, in the thread of one generation, never on the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from inference.messages.generation import Delta, ToolCallDelta
from inference.output.detokenizer import Detokenizer
from inference.output.stop_strings import StopStrings
from inference.output.thinking import ThinkingSplitter, ThinkTags
from inference.output.tool_calls import ToolCallParser


class OutputPipeline:
    """`push` every token the engine gives, in order, then `flush` once.

    `think_tags` None: the model has no reasoning, everything is content. `starts_thinking`: the prompt opened the
    thinking block already. `calls` looks for tool calls in content; None where none are offered. `stop` ends content
    only; reasoning and calls may hold such a text. A thinking tag inside a call is text of the call. `drops_space`: a
    space at the very beginning, or behind a tag that is a token, is the tokenizer's own. `given` is content that the
    prompt ends with: it is not told again, but what follows goes on from it.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        think_tags: ThinkTags | None = None,
        starts_thinking: bool = False,
        calls: ToolCallParser | None = None,
        stop: Sequence[str] = (),
        drops_space: bool = False,
        given: str = "",
    ) -> None:
        self._token_bytes = token_bytes
        self._drops_space = self._is_beginning = drops_space
        self._calls = calls
        self._shown_calls: set[int] = set()
        self._detokenizer = Detokenizer()
        self._splitter: ThinkingSplitter | None = None
        if think_tags is not None:
            fence = calls.fence if calls is not None else None  # a call's text, which holds no code, is kept from it
            self._splitter = ThinkingSplitter(think_tags, starts_inside=starts_thinking, fence=fence, given=given)
        if calls is not None:
            calls.fence.feed(given)
        self._stop = StopStrings(stop)
        self._think_tokens: dict[int, str] = {}  # tags that are tokens, with their texts
        self._open_id: int | None = None
        if think_tags is not None and think_tags.open_id is not None and think_tags.close_id is not None:
            self._open_id = think_tags.open_id
            self._think_tokens = {think_tags.open_id: think_tags.open, think_tags.close_id: think_tags.close}
        self.num_reasoning_tokens = 0  # the tags count with what they enclose
        self.num_content_chars = 0  # of content so far, what is held back for a stop string included
        self.num_shown_chars = 0  # of content in the deltas given out

    @property
    def stopped(self) -> bool:
        """A stop string was completed, or the one call made; nothing that follows belongs to the answer."""
        return self._stop.stopped or (self._calls is not None and self._calls.is_done)

    @property
    def is_thinking(self) -> bool:
        return self._splitter is not None and self._splitter.is_thinking

    @property
    def is_near_call(self) -> bool:
        """Whether what comes next may belong to a tool call."""
        return self._calls is not None and self._calls.is_near_call

    @property
    def num_calls(self) -> int:
        """Tool calls in the deltas given out that did not fail (so far: one may be under way)."""
        return len(self._shown_calls)

    def push(self, token_id: int) -> list[Delta]:
        """The deltas this token completes; often none, when it ends inside a character or a possible stop string."""
        if self.stopped:
            return []
        was_thinking = self.is_thinking
        tag = self._think_tokens.get(token_id)
        if tag is not None and self._splitter is not None and not self._is_in_call:
            deltas = self._parted(self._detokenizer.flush())
            deltas += self._called(self._splitter.open() if token_id == self._open_id else self._splitter.close())
            self._is_beginning = self._drops_space
        else:
            piece = tag.encode() if tag is not None else self._token_bytes(token_id)
            if self._is_beginning and piece:
                piece, self._is_beginning = piece.removeprefix(b" "), False
            deltas = self._parted(self._detokenizer.feed(piece))
        if was_thinking or self.is_thinking:
            self.num_reasoning_tokens += 1
        return self._shown(deltas)

    def flush(self, *, is_cut: bool = False) -> list[Delta]:
        """No more tokens follow: everything still held back. Nothing once a stop string was completed.

        `is_cut`: not the model ended it, so an unfinished tool call is not shown as content.
        """
        if self._stop.stopped:
            return []
        deltas = self._parted(self._detokenizer.flush())
        if self._splitter is not None:
            deltas += self._called(self._splitter.flush())
        if self._calls is not None:
            deltas += self._calls.flush(is_cut=is_cut)
        deltas = self._shown(deltas)
        rest = self._stop.flush()
        self.num_shown_chars += len(rest)
        return merged([*deltas, Delta("content", rest)])

    @property
    def _is_in_call(self) -> bool:
        return self._calls is not None and self._calls.is_in_call

    def _parted(self, text: str) -> list[Delta]:
        """`text` as thoughts, content and calls."""
        if self._splitter is None:
            return self._called([Delta("content", text)])
        if self._calls is None:
            return self._splitter.feed(text)
        deltas: list[Delta] = []
        # Where tags are text, a call may begin or end between any two characters, and inside it a tag is none.
        for part in [text] if self._think_tokens else text:
            deltas += self._called([Delta("content", part)] if self._is_in_call else self._splitter.feed(part))
        return deltas

    def _called(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas with content parted into content and calls."""
        if self._calls is None:
            return deltas
        parted: list[Delta] = []
        for delta in deltas:
            if self._calls.is_done:
                break  # thoughts after the one call are dropped as well
            parted += self._calls.feed(delta.text) if delta.kind == "content" else [delta]
        return parted

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas with content run through the stop strings; reasoning after a completed one is dropped too."""
        shown: list[Delta] = []
        for delta in deltas:
            if self._stop.stopped:
                break
            if delta.kind == "content":
                self.num_content_chars += len(delta.text)
                delta = Delta("content", self._stop.feed(delta.text))
                self.num_shown_chars += len(delta.text)
            elif delta.call is not None and delta.call.error is None:
                self._shown_calls.add(delta.call.index)
            elif delta.call is not None:
                self._shown_calls.discard(delta.call.index)
            shown.append(delta)
        return merged(shown)


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same in as few deltas as possible: neighbours of one kind (and one call) joined, empty ones gone."""
    runs: list[list[Delta]] = []
    for delta in deltas:
        if delta.call is None and not delta.text:
            continue
        if runs and _may_join(runs[-1][0], delta):
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return [_joined(run) if len(run) > 1 else run[0] for run in runs]


def _may_join(first: Delta, second: Delta) -> bool:
    if first.call is None or second.call is None:
        return first.call is second.call and first.kind == second.kind
    tells_more = second.call.id or second.call.name or second.call.error is not None
    return first.call.index == second.call.index and first.call.error is None and not tells_more


def _joined(run: Sequence[Delta]) -> Delta:
    """Those deltas as one."""
    first = run[0]
    if first.call is None:
        return Delta(first.kind, "".join(delta.text for delta in run))
    arguments = "".join(delta.call.arguments for delta in run if delta.call is not None)
    return Delta(first.kind, "", ToolCallDelta(first.call.index, first.call.id, first.call.name, arguments))
