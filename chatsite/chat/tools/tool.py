"""What a tool is: a name and a description for the model, typed arguments, and a function that answers a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.utils.functional import Promise

from chatsite.accounts.models import User
from inference.messages.generation import ToolSpec


class ToolFailed(Exception):
    """A call came to nothing. The sentence is for the model, which may do better, and for the reader."""


@dataclass(frozen=True)
class Tool:
    """`title` names it to people, `description` to the model. `run` gets whose chat it is and the decoded arguments.

    `run` raises ToolFailed; anything else it raises is a fault of ours.
    """

    name: str
    title: str | Promise
    description: str
    arguments: type[msgspec.Struct]
    run: Callable[[User, Any], str]
    _decoder: msgspec.json.Decoder[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Tools are made at import, by one thread: see inference.messages.serialization.
        object.__setattr__(self, "_decoder", msgspec.json.Decoder(self.arguments))

    @property
    def spec(self) -> ToolSpec:
        """As it is offered to the model."""
        schema = msgspec.json.schema(self.arguments)
        (body,) = schema["$defs"].values()
        return ToolSpec(
            name=self.name, description=self.description, parameters=msgspec.json.encode(_plain(body)).decode()
        )

    def decode(self, arguments: str) -> Any:
        """The arguments that the model wrote as JSON. Raises ToolFailed that names what is wrong with them."""
        try:
            return self._decoder.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolFailed(f"The arguments do not fit: {error}.") from None


def _plain(schema: Any) -> Any:
    """Without titles and defaults that say nothing to a model and cost tokens of every prompt."""
    if not isinstance(schema, dict):
        return schema
    left_out = ("title",)
    return {key: _plain(value) for key, value in schema.items() if key not in left_out or isinstance(value, dict)}
