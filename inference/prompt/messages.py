"""Which message lists and tools are sound. Owns these rules and the reading of OpenAI-style JSON messages; knows no
template.

Called before a template runs (every list), and by whoever takes messages from outside as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from inference.errors import InvalidRequest
from inference.messages.generation import (
    MAX_SCHEMA_CHARS,
    MAX_TOOL_CHARS,
    MAX_TOOLS,
    ChatMessage,
    GenerationRequest,
    Role,
    ToolCall,
    ToolSpec,
)

MAX_MESSAGES = 10_000
MAX_JSON_DEPTH = 100  # of schemas and arguments: templates write them recursively
MAX_NAMED = 8  # calls in one refusal
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def parse(raw: object) -> tuple[ChatMessage, ...]:
    """Messages from decoded JSON; content may be a string or a list of text parts, which are joined.

    Raises:
        InvalidRequest: the sentence names the message and what is wrong with it.
    """
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise InvalidRequest("messages must be a list.", param="messages")
    return check([_message(item, f"messages[{index}]") for index, item in enumerate(raw)])


def check(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages as they are, or InvalidRequest that names the first problem and what was expected there.

    A tool's result follows an assistant message or another result, and every call has its result before anything else
    comes. System messages may stand anywhere else: `prompt.placing` finds them a place. An assistant message at the
    end is the beginning of the answer. Content is text without lone surrogates.
    """
    if not messages:
        raise InvalidRequest("messages must not be empty: expected at least a user message.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"at most {MAX_MESSAGES:,} messages, not {len(messages):,}.", param="messages")
    order = _Order()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role not in Role.__members__.values():
            raise InvalidRequest(
                f"{where}.role is not known: expected one of {', '.join(Role)}, not {message.role!r}.",
                param=f"{where}.role",
            )
        _check_text(message.content, f"{where}.content")
        _check_calls(message, where)
        order.take(message, where)
    order.end()
    return tuple(messages)


def check_tools(request: GenerationRequest) -> None:
    """Return, or raise InvalidRequest that names what of the request's tools, or of its choice, cannot be."""
    if len(request.tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools takes at most {MAX_TOOLS} tools, not {len(request.tools)}.", param="tools")
    names: set[str] = set()
    for index, tool in enumerate(request.tools):
        where = f"tools[{index}]"
        if not TOOL_NAME.fullmatch(tool.name):
            raise InvalidRequest(f"{where}: a name must have 1 to 64 letters, digits, _ or -.", param=where)
        if tool.name in names:
            raise InvalidRequest(f"{where}: another tool has the name {tool.name!r} already.", param=where)
        names.add(tool.name)
        _check_text(tool.description, f"{where}.description")
        if len(tool.description) > MAX_TOOL_CHARS:
            raise InvalidRequest(f"{where}: a description may have at most {MAX_TOOL_CHARS:,} characters.", param=where)
        _check_text(tool.parameters, f"{where}.parameters")
        if len(tool.parameters) > MAX_SCHEMA_CHARS:
            raise InvalidRequest(f"{where}: a schema may have at most {MAX_SCHEMA_CHARS:,} characters.", param=where)
        schema = object_of(tool.parameters or "{}", where, "the parameters")
        if schema.get("type", "object") != "object":
            raise InvalidRequest(f"{where}: the parameters must be of the type object.", param=where)
    if request.tool_choice == "required" and not names:
        raise InvalidRequest("tool_choice asks for a call, but no tools are given.", param="tool_choice")
    if request.required_tool and request.required_tool not in names:
        raise InvalidRequest(f"tool_choice names {request.required_tool!r}, which is no tool.", param="tool_choice")


def object_of(text: str, where: str, what: str) -> dict[str, object]:
    """The JSON object that `text` is. Raises InvalidRequest that calls it `what`, of `where`."""
    try:
        value = _any_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidRequest(f"{where}: {what} must be a JSON object: {reason}.", param=where) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: {what} must be a JSON object.", param=where)
    level: list[object] = [value]
    for _ in range(MAX_JSON_DEPTH):
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))  # type: ignore[attr-defined]
        level = [child for child in children if isinstance(child, dict | list)]
    if level:
        raise InvalidRequest(f"{where}: {what} are nested more than {MAX_JSON_DEPTH} levels deep.", param=where)
    return value


_any_decoder = msgspec.json.Decoder()


class _Order:
    """Who may speak next."""

    def __init__(self) -> None:
        self._previous: Role | None = None
        self._where = ""  # of the message before
        self._calls_where = ""
        self._open: dict[str, None] = {}  # calls without a result, in order

    def take(self, message: ChatMessage, where: str) -> None:
        role = message.role
        if role is Role.TOOL:
            self._take_result(message, where)
        elif self._open:
            raise _unexpected(where, role, "tool", self._missing())
        if role is Role.ASSISTANT:
            self._open = {call.id: None for call in message.tool_calls}
            self._calls_where = where
        self._previous, self._where = role, where

    def _take_result(self, message: ChatMessage, where: str) -> None:
        if self._previous not in (Role.ASSISTANT, Role.TOOL):
            expected = "user or assistant" if self._previous else "system, user or assistant"
            raise _unexpected(where, Role.TOOL, expected, "a tool's result must follow an assistant message with calls")
        wanted = message.tool_call_id
        if not wanted:
            self._open.pop(next(iter(self._open), ""), None)
        elif wanted in self._open:
            del self._open[wanted]
        else:
            named = " or ".join(repr(id_[:80]) for id_ in islice(self._open, MAX_NAMED))
            expected = f"a result for {named}" if self._open else "no result here"
            raise InvalidRequest(
                f"{where} answers the tool call {wanted[:80]!r}, which no message just before it made: "
                f"expected {expected}.",
                param=f"{where}.tool_call_id",
            )

    def end(self) -> None:
        if self._open:
            raise InvalidRequest(f"after {self._where}: expected a tool message: {self._missing()}.", param="messages")

    def _missing(self) -> str:
        return f"the tool call {next(iter(self._open))[:80]!r} of {self._calls_where} has no result yet"


def _unexpected(where: str, role: Role | None, expected: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{where} has the role {role}, expected {expected}: {why}.", param=where)


def _check_text(text: object, where: str) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{where} must be text.", param=where)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{where} holds half of a character (a lone surrogate).", param=where) from None


def _check_calls(message: ChatMessage, where: str) -> None:
    _check_text(message.tool_call_id, f"{where}.tool_call_id")
    if message.tool_call_id and message.role is not Role.TOOL:
        raise InvalidRequest(f"{where}: only a tool message has a tool_call_id.", param=f"{where}.tool_call_id")
    if message.tool_calls and message.role is not Role.ASSISTANT:
        raise InvalidRequest(f"{where}: only an assistant message has tool_calls.", param=f"{where}.tool_calls")
    ids: set[str] = set()
    for index, call in enumerate(message.tool_calls):
        at = f"{where}.tool_calls[{index}]"
        for text in (call.id, call.name, call.arguments):
            _check_text(text, at)
        if not call.id or call.id in ids:
            raise InvalidRequest(f"{at} must have an id of its own.", param=at)
        ids.add(call.id)
        if not TOOL_NAME.fullmatch(call.name):
            raise InvalidRequest(f"{at}: a name must have 1 to 64 letters, digits, _ or -.", param=at)
        object_of(call.arguments or "{}", at, "the arguments")


def _message(item: object, where: str) -> ChatMessage:
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"{where} must be an object.", param=where)
    try:
        role = Role(item.get("role"))  # type: ignore[arg-type]
    except ValueError:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(Role)}, not {item.get('role')!r}.", param=f"{where}.role"
        ) from None
    calls = _calls(item.get("tool_calls"), f"{where}.tool_calls")
    content = item.get("content")
    text = "" if content is None and role is Role.ASSISTANT else _text(content, f"{where}.content")
    call_id = item.get("tool_call_id")
    if call_id is not None and not isinstance(call_id, str):
        raise InvalidRequest(f"{where}.tool_call_id must be text.", param=f"{where}.tool_call_id")
    return ChatMessage(role=role, content=text, tool_calls=calls, tool_call_id=call_id or "")


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and not isinstance(content, bytes) and content:
        parts = []
        for index, part in enumerate(content):
            text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
            if not isinstance(text, str):
                raise InvalidRequest(f"{where}[{index}] must be a text part.", param=f"{where}[{index}]")
            parts.append(text)
        return "".join(parts)
    raise InvalidRequest(f"{where} must be text or a list of text parts.", param=where)


def _calls(raw: object, where: str) -> tuple[ToolCall, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise InvalidRequest(f"{where} must be a list.", param=where)
    calls = []
    for index, item in enumerate(raw):
        function = item.get("function") if isinstance(item, Mapping) else None
        if not isinstance(item, Mapping) or not isinstance(function, Mapping):
            raise InvalidRequest(f"{where}[{index}] must be a function call.", param=f"{where}[{index}]")
        fields = (item.get("id"), function.get("name"), function.get("arguments") or "{}")
        if not all(isinstance(field, str) for field in fields):
            raise InvalidRequest(
                f"{where}[{index}] must have an id, a name and arguments, each text.", param=f"{where}[{index}]"
            )
        calls.append(ToolCall(*fields))  # type: ignore[arg-type]
    return tuple(calls)


def parameters_of(tool: ToolSpec) -> dict[str, object]:
    """The schema of a checked tool."""
    return object_of(tool.parameters or "{}", "tools", "the parameters") or {"type": "object", "properties": {}}
