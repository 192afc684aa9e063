"""`response_format` in the body of a chat completion: the JSON schema that an answer follows.

Decoding checks types; what is not offered is refused by name. Whether a schema can be followed is not seen here, but
where the request is admitted. Knows nothing of HTTP.
"""

from __future__ import annotations

import re

import msgspec

from inference.errors import InvalidRequest

ANY_OBJECT = '{"type":"object"}'  # what json_object promises
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JsonSchemaFormat(msgspec.Struct):
    """`strict`: refused where an answer cannot be held to every keyword; without, held to as many as can be. `name` is
    for the caller's own use."""

    name: str
    schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`schema` beside `json_object` is how llama-server takes one."""

    type: str = "text"
    json_schema: JsonSchemaFormat | None = None
    schema: msgspec.Raw = msgspec.Raw()

    @property
    def is_strict(self) -> bool:
        return self.json_schema is not None and bool(self.json_schema.strict)

    def json_text(self) -> str | None:
        """The JSON Schema that the answer must follow, None for free text.

        Raises:
            InvalidRequest: another type, or a schema without what belongs to it.
        """
        if self.type == "text":
            return None
        if self.type == "json_object":
            return _schema_text(self.schema) or ANY_OBJECT
        if self.type != "json_schema":
            raise InvalidRequest(
                f"response_format.type must be text, json_object or json_schema, not {self.type[:40]!r}.",
                param="response_format",
            )
        if self.json_schema is None:
            raise InvalidRequest("response_format.json_schema is missing.", param="response_format")
        if not _NAME.fullmatch(self.json_schema.name):
            raise InvalidRequest(
                "response_format.json_schema.name must have 1 to 64 letters, digits, _ or -.", param="response_format"
            )
        schema = _schema_text(self.json_schema.schema)
        if schema is None:
            raise InvalidRequest("response_format.json_schema.schema is missing.", param="response_format")
        return schema


def _schema_text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw).decode()
    return None if text in ("", "null") else text
