"""Messages in the body of a chat completion -> the turns that the model will see.

Decoding checks types; what is not offered is refused by name. Who may speak when is not seen here, but where the prompt
is counted. Knows nothing of HTTP.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.messages.generation import ChatMessage, Role, ToolCall

ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str = ""


class MessageToolCall(msgspec.Struct):
    id: str
    type: str = "function"
    function: CalledFunction | None = None


class RequestMessage(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: Any = None

    def chat_message(self, where: str) -> ChatMessage:
        """Raises InvalidRequest: a role, or a kind of content, that is not offered; `where` names this message."""
        role = ROLES.get(self.role)
        if self.role == "function" or self.function_call is not None:
            raise InvalidRequest(f"{where}: functions are not offered; use tools.", param=where)
        if role is None:
            raise InvalidRequest(
                f"{where}: unknown role {self.role[:40]!r}; expected one of {', '.join(ROLES)}.", param=f"{where}.role"
            )
        if self.tool_calls and role is not Role.ASSISTANT:
            raise InvalidRequest(f"{where}: only an assistant calls tools.", param=f"{where}.tool_calls")
        if role is Role.TOOL and not self.tool_call_id:
            raise InvalidRequest(f"{where}.tool_call_id is missing.", param=f"{where}.tool_call_id")
        return ChatMessage(
            role=role,
            content=self._text(where),
            tool_calls=tuple(_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(self.tool_calls or ())),
            tool_call_id=(self.tool_call_id or "") if role is Role.TOOL else "",
        )

    def _text(self, where: str) -> str:
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            if self.role == "assistant":
                return ""
            raise InvalidRequest(f"{where} has no content.", param=f"{where}.content")
        texts = []
        for i, part in enumerate(self.content):
            if part.type != "text" or part.text is None:
                raise InvalidRequest(
                    f"{where}.content[{i}]: only text parts are offered, not {part.type[:40]!r}.",
                    param=f"{where}.content[{i}]",
                )
            texts.append(part.text)
        return "".join(texts)


def _call(call: MessageToolCall, where: str) -> ToolCall:
    if call.type != "function" or call.function is None:
        raise InvalidRequest(f"{where}: only calls of functions are offered.", param=where)
    return ToolCall(call.id, call.function.name, call.function.arguments)
