"""Answers that must be tool calls: the grammar of calls in JSON between their tags.

Owns what such an answer may look like. Knows no model but its tags; `grammar.matcher` compiles it over a vocabulary,
and web nodes `check` it before anything is submitted. Only the XML dialect has one: what Python allows is no small
grammar.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer

from inference.errors import InvalidRequest
from inference.grammar import json_schema
from inference.protocol import GenerationRequest, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NO_ARGUMENTS = '{"type": "object", "properties": {}, "additionalProperties": false}'


@dataclass(frozen=True)
class Tags:
    """How the tags of a call look to the grammar: tokens where the model has them, else text."""

    open: str = json.dumps(OPEN)
    close: str = json.dumps(CLOSE)

    @classmethod
    def of(cls, open_id: int | None, close_id: int | None) -> Tags:
        if open_id is None or close_id is None:
            return cls()
        return cls(f"<[{open_id}]>", f"<[{close_id}]>")


def is_held(request: GenerationRequest) -> bool:
    """Whether a grammar holds the answer to calls, or to calls or its schema."""
    return request.may_call and (request.tool_choice == "required" or request.sampling.json_schema is not None)


def check(request: GenerationRequest) -> None:
    """Return if the answer can be held to what `request` asks for. Takes as long as `json_schema.check`, per tool.

    Raises:
        InvalidRequest: it cannot; the sentence says why.
    """
    if is_held(request):
        compiled(request, json_schema.BYTES, Tags())


def compiled(request: GenerationRequest, vocabulary: LLTokenizer, tags: Tags) -> LLMatcher:
    """A matcher over `vocabulary` that stands at the beginning of an answer. Raises as `check`."""
    if request.tool_dialect == "python":
        raise InvalidRequest(
            "Calls in Python cannot be asked for by tool_choice, nor go together with response_format.",
            param="tool_choice",
        )
    chosen = [tool for tool in request.tools if request.required_tool in ("", tool.name)]
    rules = ["start: _BREAK? calls" + (" | answer" if request.tool_choice != "required" else "")]
    rules.append("calls: call" + ("" if request.required_tool or not request.is_parallel else ' ("\\n" call)*'))
    rules.append(f'call: {tags.open} "\\n" ({" | ".join(f"tool_{i}" for i in range(len(chosen)))}) "\\n" {tags.close}')
    for index, tool in enumerate(chosen):
        head = json.dumps(f'{{"name": "{tool.name}", "arguments": ')
        rules.append(f'tool_{index}: {head} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: %json {_arguments(tool)}")
    if request.tool_choice != "required" and request.sampling.json_schema is not None:
        rules.append(f"answer: %json {json_schema.body(request.sampling.json_schema)}")
    rules.append("_BREAK: /\\n{1,2}/")  # as models put it behind a thought
    try:
        return json_schema.matcher("\n".join(rules) + "\n", vocabulary)
    except InvalidRequest as error:
        for tool in chosen:
            _check_alone(tool)
        raise InvalidRequest(f"tools: {error.message}", param="tools") from None


def _check_alone(tool: ToolSpec) -> None:
    """Raises InvalidRequest that names the tool, if it is this one's schema that cannot be followed."""
    body = _arguments(tool)
    try:
        json_schema.matcher(f"start: %json {body}\n", json_schema.BYTES)
    except InvalidRequest as error:
        raise InvalidRequest(f"The tool {tool.name}: {error.message}", param="tools") from None


def _arguments(tool: ToolSpec) -> str:
    """The schema of the tool's arguments, which are an object."""
    try:
        return json_schema.body(tool.parameters or NO_ARGUMENTS, must_be_object=True)
    except InvalidRequest as error:
        raise InvalidRequest(f"The tool {tool.name}: {error.message}", param="tools") from None
