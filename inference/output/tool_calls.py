"""Parts tool calls from content, as they are written.

Owns whether the text is inside a call, and what is held back until that is known. Everything goes character by
character, so no cut of the text makes a difference. Knows no tokens and no thoughts: `output.deltas` gives it content
alone, in the thread of one generation.

A call begins with its tag, but not inside a fenced code block nor right after a quote character: there an answer
explains the tag. What turns out to be no good call fails alone: its text is content, as it was written, and what
follows goes on. Text around calls is content; white space that would be all the content there is, is dropped.

An answer that a limit cut in the middle of a call is no such failure: what was told of the call stays told, the rest of
it is not shown, and no piece of a tag becomes content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Literal

from inference.messages.generation import Delta, ErrorFacts, ToolCallDelta, ToolSpec
from inference.output import python_calls
from inference.output.call_text import CallFault, CallText, invalid, truncated, unknown
from inference.output.code_fence import CodeFence
from inference.output.python_calls import PythonBlock, Statement

Dialect = Literal["xml", "python"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CODE_OPEN, CODE_CLOSE = "<code>", "</code>"
_PYTHON_FENCES = ("```python\n", "```py\n")  # only as a line of their own


class _Mode(Enum):
    CONTENT = auto()
    CALL = auto()  # inside the JSON of a call, or before its brace
    AFTER = auto()  # behind a call, before its end tag
    BLOCK = auto()  # inside Python


class ToolCallParser:
    """`feed` it content, then `flush` once. `id_of` names the call of an index; the same for a continued answer.

    With `is_parallel` False the answer is over (`is_done`) with its first good call. `is_forced`: the answer is calls
    and nothing else, so what begins like a tag is one.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        *,
        id_of: Callable[[int], str],
        dialect: Dialect = "xml",
        is_parallel: bool = True,
        is_forced: bool = False,
    ) -> None:
        self._parameters = {tool.name: _parameter_names(tool) for tool in tools}
        self._id_of = id_of
        self._is_parallel = is_parallel
        self._is_forced = is_forced
        self._openers = (OPEN,) if dialect == "xml" else (CODE_OPEN, *_PYTHON_FENCES)
        self._mode = _Mode.CONTENT
        self._deltas: list[Delta] = []
        self._shown: list[str] = []  # content of the call under way of `feed`
        self._held = ""  # in content: may begin an opener. After a call: may be its end tag
        self._between: list[str] = []  # white space after a call, before what may be its end tag
        self._raw: list[str] = []  # of the call being read, as written
        self._opener = ""
        self._call = CallText(())
        self._block = PythonBlock("")
        self._has_begun = False  # the call being read: a piece of it was shown
        self._index = 0  # of the next call
        self._blank: list[str] = []
        self._holds_blank = True
        self.fence = CodeFence()  # of all content so far, that of failed calls included
        self.num_calls = 0  # good ones
        self.is_done = False

    @property
    def is_in_call(self) -> bool:
        """Whether the next character belongs to a call, whatever else it might begin."""
        return self._mode in (_Mode.CALL, _Mode.BLOCK)

    @property
    def is_near_call(self) -> bool:
        """Whether the next character may belong to a call."""
        return self._mode is not _Mode.CONTENT

    def feed(self, text: str) -> list[Delta]:
        for char in text:
            if self.is_done:
                break
            self._step(char)
        return self._take()

    def flush(self, *, is_cut: bool = False) -> list[Delta]:
        """No more text follows: an unfinished call has failed. `is_cut`: the model would have gone on."""
        if self.is_done:
            return []
        if self._mode is _Mode.CALL and is_cut:
            self._cut_call()
        elif self._mode is _Mode.CALL:
            self._fail(truncated())
        elif self._mode is _Mode.BLOCK:
            self._end_block(is_closed=False, is_cut=is_cut)
        elif self._mode is _Mode.AFTER and is_cut:
            self._held, self._between, self._mode = "", [], _Mode.CONTENT  # the beginning of its end tag
        elif self._mode is _Mode.AFTER:
            self._leave()
        if self.is_done:
            return self._take()
        if is_cut and self._begins_tag():
            self._held = ""
        self._put_held()
        if self._blank and not self.num_calls:
            self._shown += self._blank
        self._blank = []
        return self._take()

    def _begins_tag(self) -> bool:
        """Whether what is held back is the beginning of a call's tag, and hardly of anything else."""
        tag = self._openers[0]
        return bool(self._held) and tag.startswith(self._held) and (self._is_forced or 2 * len(self._held) > len(tag))

    def _cut_call(self) -> None:
        if self._call.is_whole:  # but for braces and tags
            self._end_call()
        else:
            self._add(self._failed(truncated().facts))
            self._index += 1
            self._has_begun = False
            self._raw = []
        self._mode = _Mode.CONTENT

    def _step(self, char: str) -> None:
        match self._mode:
            case _Mode.CONTENT:
                self._in_content(char)
            case _Mode.CALL:
                self._in_call(char)
            case _Mode.AFTER:
                self._after_call(char)
            case _Mode.BLOCK:
                self._raw.append(char)
                if self._block.feed(char):
                    self._end_block(is_closed=True)
                elif len(self._raw) > python_calls.MAX_BLOCK_CHARS:
                    self._fail(invalid("it is too long"))

    # -- content

    def _in_content(self, char: str) -> None:
        grown = self._held + char
        if self._held:
            if any(opener.startswith(grown) for opener in self._openers):
                self._held = grown
                if grown in self._openers:
                    self._open(grown)
                return
            self._put_held()
        if any(opener[0] == char for opener in self._openers) and self._may_open(char):
            self._held = char
        else:
            self._put(char)

    def _may_open(self, char: str) -> bool:
        return self.fence.may_begin if char == "`" else not self.fence.is_quoting

    def _open(self, opener: str) -> None:
        self._held = ""
        self._opener = opener
        self._raw = list(opener)
        self._has_begun = False
        if opener == OPEN:
            self._mode, self._call = _Mode.CALL, CallText(self._parameters)
        else:
            self._mode = _Mode.BLOCK
            self._block = PythonBlock(CODE_CLOSE if opener == CODE_OPEN else "\n```")

    def _put_held(self) -> None:
        held, self._held = self._held, ""
        for char in held:
            self._put(char)

    def _put(self, char: str) -> None:
        """Content for sure."""
        self.fence.feed(char)
        if self._holds_blank and char.isspace():
            self._blank.append(char)
            return
        if self._blank:
            self._shown += self._blank
            self._blank = []
        self._holds_blank = False
        self._shown.append(char)

    # -- calls in JSON

    def _in_call(self, char: str) -> None:
        try:
            piece = self._call.feed(char)
        except CallFault as fault:
            self._fail(fault)
            self._step(char)
            return
        self._raw.append(char)
        if piece:
            self._tell(self._call.name, piece)
        if self._call.is_done:
            self._end_call()
            self._mode = _Mode.AFTER

    def _after_call(self, char: str) -> None:
        """Up to the end tag; where something else comes, the tag is missing. Another object is another call."""
        if char.isspace() and not self._held:
            self._between.append(char)
            return
        tag = self._held + char
        if tag == "{":
            self._open(OPEN)
            self._raw, self._between = [], []
            self._step(char)
        elif tag == CLOSE:
            self._held, self._between, self._mode = "", [], _Mode.CONTENT
        elif CLOSE.startswith(tag):
            self._held = tag
        else:
            self._leave()
            self._step(char)

    def _leave(self) -> None:
        """Behind a call without an end tag: what came since is content."""
        rest = [*self._between, *self._held]
        self._held, self._between, self._mode = "", [], _Mode.CONTENT
        for char in rest:
            self._step(char)

    # -- calls in Python

    def _end_block(self, *, is_closed: bool, is_cut: bool = False) -> None:
        """The block is complete, or the answer has ended in it: with `is_cut` perhaps in the middle of a statement."""
        block = self._block
        found = python_calls.statements(block.source, self._parameters)
        if is_cut and self._opener == CODE_OPEN:
            whole_lines = block.source.rpartition("\n")[0]
            told = python_calls.statements(whole_lines, self._parameters) if found is None else found
            good = [one for one in told or [] if not one.problem]
            self._tell_block(good)
            if not self.is_done and (found is None or len(good) < len(found) or not good):
                self._cut_call()
            return
        is_fence = self._opener != CODE_OPEN
        if is_fence and not any(one.name in self._parameters for one in found or []):
            self._put_raw()  # code for a person to read
            return
        if not found:
            fault = truncated() if not is_closed else invalid("it is not sound Python" if found is None else "no call")
            self._fail(fault)
            return
        self._tell_block(found)

    def _tell_block(self, found: Sequence[Statement]) -> None:
        self._mode = _Mode.CONTENT
        self._raw = []
        lines = self._block.text.split("\n")
        for one in found:
            if self.is_done:
                return
            if one.problem:
                fault = unknown(one.name) if one.is_unknown else invalid(one.problem)
                first, last = one.lines
                self._raw = list("\n".join(lines[first - 1 : last]) + "\n")
                self._fail(fault)
            else:
                self._tell_statement(one)

    def _tell_statement(self, one: Statement) -> None:
        self._has_begun = False
        self._tell(one.name, "{")
        for number, argument in enumerate(one.arguments):
            self._tell(one.name, (", " if number else "") + argument)
        self._tell(one.name, "}")
        self._end_call()

    # -- what is told

    def _tell(self, name: str, piece: str) -> None:
        if self._has_begun:
            self._add(ToolCallDelta(self._index, arguments=piece))
        else:
            self._add(ToolCallDelta(self._index, self._id_of(self._index), name, piece))
            self._has_begun = True

    def _end_call(self) -> None:
        self.num_calls += 1
        self._index += 1
        self._raw = []
        self._has_begun = False
        self.fence.forget_quote()
        self._holds_blank = True
        self.is_done = not self._is_parallel

    def _fail(self, fault: CallFault) -> None:
        self._add(self._failed(fault.facts))
        self._index += 1
        self._has_begun = False
        self._put_raw()

    def _failed(self, facts: ErrorFacts) -> ToolCallDelta:
        return ToolCallDelta(self._index, "" if self._has_begun else self._id_of(self._index), error=facts)

    def _put_raw(self) -> None:
        raw, self._raw = self._raw, []
        self._mode = _Mode.CONTENT
        for char in raw:
            self._put(char)

    def _add(self, call: ToolCallDelta) -> None:
        self._flush_shown()
        self._deltas.append(Delta("tool_call", "", call))

    def _flush_shown(self) -> None:
        if self._shown:
            self._deltas.append(Delta("content", "".join(self._shown)))
            self._shown = []

    def _take(self) -> list[Delta]:
        self._flush_shown()
        deltas, self._deltas = self._deltas, []
        return deltas


def _parameter_names(tool: ToolSpec) -> tuple[str, ...]:
    """In the order of the schema."""
    try:
        schema = json.loads(tool.parameters or "{}")
    except (ValueError, RecursionError):
        return ()
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return tuple(properties) if isinstance(properties, dict) else ()
