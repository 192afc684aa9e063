"""Which message lists are sound. Owns these rules and the reading of OpenAI-style JSON messages; knows no template.

Called before a template runs (every list), and by whoever takes messages from outside as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.errors import InvalidRequest
from inference.protocol import ChatMessage, Role

MAX_MESSAGES = 10_000


def parse(raw: object) -> tuple[ChatMessage, ...]:
    """Messages from decoded JSON; content may be a string or a list of text parts, which are joined.

    Raises:
        InvalidRequest: the sentence names the message and what is wrong with it.
    """
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise InvalidRequest("messages must be a list.", param="messages")
    messages: list[ChatMessage] = []
    known_calls: set[str] = set()
    for index, item in enumerate(raw):
        where = f"messages[{index}]"
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"{where} must be an object.", param=where)
        try:
            role = Role(item.get("role"))  # type: ignore[arg-type]
        except ValueError:
            raise InvalidRequest(
                f"{where}.role must be one of {', '.join(Role)}, not {item.get('role')!r}.", param=f"{where}.role"
            ) from None
        if role is Role.ASSISTANT:
            known_calls |= _call_ids(item.get("tool_calls"))
        if role is Role.TOOL and item.get("tool_call_id") not in known_calls:
            raise InvalidRequest(
                f"{where} answers the tool call {item.get('tool_call_id')!r}, which no earlier message made.",
                param=f"{where}.tool_call_id",
            )
        messages.append(ChatMessage(role=role, content=_text(item.get("content"), f"{where}.content")))
    return check(messages)


def check(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages as they are, or InvalidRequest that names the first problem.

    A system message stands first or nowhere, a tool's result follows an assistant or another result, and the last
    message is one to be answered (user or tool). Content is text without lone surrogates.
    """
    if not messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"at most {MAX_MESSAGES:,} messages, not {len(messages):,}.", param="messages")
    previous: Role | None = None
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role not in Role.__members__.values():
            raise InvalidRequest(f"{where}.role is not known: {message.role!r}.", param=f"{where}.role")
        if not isinstance(message.content, str):
            raise InvalidRequest(f"{where}.content must be text.", param=f"{where}.content")
        try:
            message.content.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{where}.content holds half of a character (a lone surrogate).", param=f"{where}.content"
            ) from None
        if message.role is Role.SYSTEM and index > 0:
            raise InvalidRequest(f"{where}: a system message must be the first one.", param=where)
        if message.role is Role.TOOL and previous not in (Role.ASSISTANT, Role.TOOL):
            raise InvalidRequest(f"{where}: a tool's result must follow an assistant message.", param=where)
        previous = message.role
    if previous not in (Role.USER, Role.TOOL):
        raise InvalidRequest(
            f"the last message must be one to answer (user or tool), not {previous}.",
            param=f"messages[{len(messages) - 1}]",
        )
    return tuple(messages)


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


def _call_ids(calls: object) -> set[str]:
    if not isinstance(calls, Sequence):
        return set()
    return {c["id"] for c in calls if isinstance(c, Mapping) and isinstance(c.get("id"), str)}
