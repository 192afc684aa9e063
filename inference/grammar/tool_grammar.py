"""Answers that must be tool calls, and calls that must follow their schema: the grammar of calls between their tags.

Owns what such an answer may look like, in JSON; `grammar.python_call` has the calls in Python. Knows no model but its
tags; `grammar.matcher` compiles it over a vocabulary, and web nodes `check` it before anything is submitted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec
from llguidance import LLMatcher, LLTokenizer

from inference.errors import InvalidRequest
from inference.grammar import json_schema, python_call
from inference.grammar.relaxation import Relaxed, relaxed
from inference.messages.generation import GenerationRequest, ToolSpec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CODE_OPEN, CODE_CLOSE = "<code>", "</code>"
MAX_HELD_CHARS = 200_000  # of all schemas that one answer's calls are held to
NO_ARGUMENTS = '{"type": "object", "properties": {}, "additionalProperties": false}'


@dataclass(frozen=True)
class Tags:
    """How the tags of a call look to the grammar: tokens where the model has them, else text."""

    open: str = json.dumps(OPEN)
    close: str = json.dumps(CLOSE)

    @classmethod
    def of(cls, open_id: int | None, close_id: int | None, texts: tuple[str, str] = (OPEN, CLOSE)) -> Tags:
        if open_id is None or close_id is None:
            return cls(*map(json.dumps, texts))
        return cls(f"<[{open_id}]>", f"<[{close_id}]>")


def tags_of(request: GenerationRequest) -> tuple[str, str]:
    """Between what the calls of its dialect stand."""
    return (CODE_OPEN, CODE_CLOSE) if request.tool_dialect == "python" else (OPEN, CLOSE)


def is_held(request: GenerationRequest) -> bool:
    """Whether a grammar holds the answer to calls, or to calls or its schema."""
    return request.may_call and (request.tool_choice == "required" or request.sampling.json_schema is not None)


def is_strict(request: GenerationRequest) -> bool:
    """Whether the answer is free, but a call follows a grammar once it has begun. Only calls in JSON do."""
    is_free = request.may_call and not is_held(request) and request.tool_dialect != "python"
    return is_free and any(tool.is_strict for tool in request.tools)


def check(request: GenerationRequest) -> tuple[str, ...]:
    """Return if the answer can be held to what `request` asks for: with a sentence for each tool of whose schema it is
    not held to everything. Takes as long as `relaxation.relaxed`, per tool.

    Raises:
        InvalidRequest: it cannot; the sentence says why.
    """
    if is_held(request):
        compiled(request, json_schema.BYTES, Tags.of(None, None, tags_of(request)))
        tools = [tool for tool in _chosen(request) if not tool.is_strict]
        told = [_relaxed(tool).warning(f"A call of {tool.name}") for tool in tools]
        return tuple(filter(None, told))
    if is_strict(request):
        compiled_rest(request, json_schema.BYTES, Tags())
    return ()


def compiled(request: GenerationRequest, vocabulary: LLTokenizer, tags: Tags) -> LLMatcher:
    """A matcher over `vocabulary` that stands at the beginning of an answer. Raises as `check`."""
    is_one = bool(request.required_tool) or not request.is_parallel
    chosen = _chosen(request)
    rules = ["start: _BREAK? calls" + (" | answer" if request.tool_choice != "required" else "")]
    if request.tool_dialect == "python":
        more = "" if is_one else ' ("\\n" call)*'
        rules += [f'calls: {tags.open} "\\n" call{more} "\\n" {tags.close}', *_python_rules(chosen)]
    else:
        rules += ["calls: call" + ("" if is_one else ' ("\\n" call)*'), f"call: {tags.open} rest"]
        rules += _rest_rules(chosen, tags)
    if request.tool_choice != "required" and request.sampling.json_schema is not None:
        rules.append(f"answer: %json {json_schema.body(request.sampling.json_schema)}")
    rules.append("_BREAK: /\\n{1,2}/")  # as models put it behind a thought
    return _matcher(rules, vocabulary, chosen)


def compiled_rest(request: GenerationRequest, vocabulary: LLTokenizer, tags: Tags) -> LLMatcher:
    """A matcher that stands right behind a call's opening tag and ends with its closing one. Raises as `check`.

    Tools that are not strict may be called with any object.
    """
    any_object = "{}"
    tools = [tool if tool.is_strict else msgspec.structs.replace(tool, parameters=any_object) for tool in request.tools]
    return _matcher(["start: rest", *_rest_rules(_bounded(tools), tags)], vocabulary, tools)


def _rest_rules(tools: list[ToolSpec], tags: Tags) -> list[str]:
    rules = [f'rest: "\\n" ({" | ".join(f"tool_{i}" for i in range(len(tools)))}) "\\n" {tags.close}']
    for index, tool in enumerate(tools):
        head = json.dumps(f'{{"name": "{tool.name}", "arguments": ')
        rules.append(f'tool_{index}: {head} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: %json {_arguments(tool)}")
    return rules


def _python_rules(tools: list[ToolSpec]) -> list[str]:
    callable_tools = [tool for tool in tools if python_call.can_name(tool.name)]
    if not callable_tools:
        raise InvalidRequest(f"The tool {tools[0].name} has a name that Python cannot call.", param="tools")
    rules = [f"call: {' | '.join(f'tool_{i}' for i in range(len(callable_tools)))}"]
    for index, tool in enumerate(callable_tools):
        _check_alone(tool)
        schema = json.loads(_arguments(tool))
        try:
            rules += python_call.rules_of(tool.name, f"tool_{index}", schema, is_strict=tool.is_strict)
        except InvalidRequest as error:
            raise InvalidRequest(f"The tool {tool.name}: {error.message}", param="tools") from None
    return rules


def _matcher(rules: list[str], vocabulary: LLTokenizer, tools: list[ToolSpec]) -> LLMatcher:
    try:
        return json_schema.matcher("\n".join(rules) + "\n", vocabulary)
    except InvalidRequest as error:
        for tool in tools:
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
        return json_schema.body(_relaxed(tool).schema, must_be_object=True)
    except InvalidRequest as error:
        raise InvalidRequest(f"The tool {tool.name}: {error.message}", param="tools") from None


def _chosen(request: GenerationRequest) -> list[ToolSpec]:
    """The tools that may be called. Raises InvalidRequest: their schemas are too large together."""
    return _bounded([tool for tool in request.tools if request.required_tool in ("", tool.name)])


def _bounded(tools: list[ToolSpec]) -> list[ToolSpec]:
    num_chars = sum(len(tool.parameters) for tool in tools)
    if num_chars > MAX_HELD_CHARS:
        raise InvalidRequest(
            f"Calls can be held to tools whose schemas have {MAX_HELD_CHARS:,} characters together, not {num_chars:,}.",
            param="tools",
        )
    return tools


def _relaxed(tool: ToolSpec) -> Relaxed:
    return relaxed(tool.parameters or NO_ARGUMENTS, is_strict=tool.is_strict)
