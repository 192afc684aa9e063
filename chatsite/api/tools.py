"""Tools in the body of a chat completion, as OpenAI's clients send them: what is offered, and what must be called.

Decoding checks types; what is not offered is refused by name. Whether names and schemas are sound is not seen here, but
where the prompt is counted. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from inference.errors import InvalidRequest
from inference.messages.generation import ToolSpec


class FunctionForm(msgspec.Struct):
    """`strict` is for a model that is free to call; a call that must be made follows its schema anyway."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class ToolForm(msgspec.Struct):
    type: str
    function: FunctionForm | None = None


class NameForm(msgspec.Struct):
    name: str


class ChoiceForm(msgspec.Struct):
    type: str
    function: NameForm | None = None


@dataclass(frozen=True)
class Choice:
    """As GenerationRequest has it."""

    tool_choice: Literal["auto", "none", "required"] = "auto"
    required_tool: str = ""


def specs(forms: Sequence[ToolForm] | None) -> tuple[ToolSpec, ...]:
    """Raises InvalidRequest: a tool of another type, or one without its function."""
    found = []
    for index, form in enumerate(forms or ()):
        where = f"tools[{index}]"
        if form.type != "function":
            raise InvalidRequest(
                f"{where}: only tools of the type function are offered, not {form.type[:40]!r}.", param=where
            )
        if form.function is None:
            raise InvalidRequest(f"{where}.function is missing.", param=f"{where}.function")
        parameters = bytes(form.function.parameters).decode()
        found.append(
            ToolSpec(
                name=form.function.name,
                description=form.function.description or "",
                parameters="" if parameters == "null" else parameters,
                is_strict=bool(form.function.strict),
            )
        )
    return tuple(found)


def choice(form: str | ChoiceForm | None, tools: Sequence[ToolSpec]) -> Choice:
    """Raises InvalidRequest: a choice that is not offered, or that names no tool of the request."""
    if form is None:
        return Choice()
    if isinstance(form, str):
        match form:
            case "auto" | "none":
                return Choice(form)
            case "required" if tools:
                return Choice("required")
            case "required":
                raise InvalidRequest("tool_choice asks for a call, but no tools are given.", param="tool_choice")
        raise InvalidRequest(
            f"tool_choice must be auto, none, required or name a function, not {form[:40]!r}.", param="tool_choice"
        )
    if form.type != "function" or form.function is None:
        raise InvalidRequest(
            f"tool_choice must name a function; the type {form.type[:40]!r} is not offered.", param="tool_choice"
        )
    if form.function.name not in {tool.name for tool in tools}:
        raise InvalidRequest(
            f"tool_choice names {form.function.name[:80]!r}, which is none of the tools.", param="tool_choice"
        )
    return Choice("required", form.function.name)
