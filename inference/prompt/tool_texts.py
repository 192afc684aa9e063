"""How tools, calls and results read in a prompt, in either dialect. Owns these texts; knows no template and no tokens.

`prompt.chat_template` uses it. All of it is other people's text: what becomes of it is content, or passed to a template
with every special token's text broken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from keyword import iskeyword
from typing import Any, Literal

from inference.messages.generation import ChatMessage, Role, ToolCall, ToolSpec
from inference.prompt import messages as message_rules

Dialect = Literal["xml", "python"]

TAGS: dict[Dialect, tuple[str, str]] = {"xml": ("<tool_call>", "</tool_call>"), "python": ("<code>", "</code>")}

_SECTIONS: dict[Dialect, tuple[str, str]] = {
    "xml": (
        "You may call one or more functions to assist with the user query.\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n\n<tools>\n",
        "</tools>\n\nFor each function call, return a json object with function name and arguments within "
        '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
        "</tool_call>",
    ),
    "python": (
        "When you send a message containing Python code between <code> and </code> tags, its calls of the following "
        "tools are made, and you will then be given their results.\n\n<tools>\n",
        "</tools>",
    ),
}


def spec_json(tool: ToolSpec) -> str:
    """The tool as the model reads it: name, description and schema."""
    return json.dumps(plain_spec(tool), ensure_ascii=False)


def plain_spec(tool: ToolSpec) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "parameters": message_rules.parameters_of(tool)}


def call_text(call: ToolCall, dialect: Dialect) -> str:
    """The call as the model would have written it, without tags."""
    if dialect == "xml":
        return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}'
    arguments = plain_arguments(call)
    names = [f"{key}={value!r}" for key, value in arguments.items() if _is_name(key)]
    others = {key: value for key, value in arguments.items() if not _is_name(key)}
    return f"{call.name}({', '.join([*names, *([f'**{others!r}'] if others else [])])})"


def _is_name(key: str) -> bool:
    return key.isidentifier() and not iskeyword(key)


def plain_arguments(call: ToolCall) -> dict[str, Any]:
    return message_rules.object_of(call.arguments or "{}", "messages", "the arguments")


def section(tools: Sequence[ToolSpec], dialect: Dialect) -> str:
    """What tells a model of its tools, for a template that does not."""
    before, after = _SECTIONS[dialect]
    return before + "".join(spec_json(tool) + "\n" for tool in tools) + after


def told_as_text(
    messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], dialect: Dialect
) -> tuple[ChatMessage, ...]:
    """The same conversation without tools, calls and results: they are told in the text of its turns.

    Results in a row become one user turn, since such templates may insist that user and assistant take turns.
    """
    told: list[ChatMessage] = []
    for is_result, group in groupby(messages, key=lambda message: message.role is Role.TOOL):
        if is_result:
            results = [f"<tool_response>\n{message.content}\n</tool_response>" for message in group]
            told.append(ChatMessage(role=Role.USER, content="\n".join(results)))
        else:
            told += [_with_calls_told(message, dialect) for message in group]
    if tools:
        head = told.pop(0).content + "\n\n" if told[0].role is Role.SYSTEM else ""
        told.insert(0, ChatMessage(role=Role.SYSTEM, content=head + section(tools, dialect)))
    return tuple(told)


def _with_calls_told(message: ChatMessage, dialect: Dialect) -> ChatMessage:
    if not message.tool_calls:
        return message
    opener, closer = TAGS[dialect]
    calls = [f"{opener}\n{call_text(call, dialect)}\n{closer}" for call in message.tool_calls]
    lines = [message.content.rstrip("\n")] if message.content.strip() else []
    return ChatMessage(role=message.role, content="\n".join([*lines, *calls]))
