"""The grammar of one tool call in Python: `name(key=value, ...)`, with literals that follow the tool's schema.

Owns how JSON values look as Python. Strings and numbers are spelled alike in both, so such a schema stays one; the
others are turned into rules: true, false and null have other names in Python, and so lists and objects that may hold
them have rules of their own. Every schema was found to be sound as JSON before (`grammar.tool_grammar`).

Arguments come in the order in which the schema names them. A name that Python cannot have as a keyword is a key of one
`**{...}` at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import Any

from inference.errors import InvalidRequest
from inference.grammar import json_schema
from inference.grammar.schema_limits import PARAM

# What says nothing of the values, or is said by the rules that are made here.
_SILENT = frozenset({"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"})
_SILENT |= frozenset({"examples", "deprecated", "readOnly", "writeOnly", "x-guidance"})
_KNOWN: dict[str, frozenset[str]] = {
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "boolean": frozenset(),
    "null": frozenset(),
    "string": frozenset({"pattern", "format", "minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
_KNOWN["integer"] = _KNOWN["number"]
_LEAVES = ("string", "number", "integer")
_ANY = "string", "number", "boolean", "null", "array", "object"

_NOTHING = '""'
# Of no more digits than a float has, and finite: Python reads 1e999 as infinity, which JSON has not.
_NUMBER = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?/"

Schema = Mapping[str, Any]


def can_name(name: str) -> bool:
    """Whether Python can call a function of that name, or take an argument of it."""
    return name.isidentifier() and not iskeyword(name)


def rules_of(name: str, prefix: str, schema: Schema, *, is_strict: bool = True) -> list[str]:
    """Lines of Lark whose rule `prefix` is a call of the tool `name`; all their names begin with `prefix`.

    Without `is_strict` what has no rule here is passed over.

    Raises:
        InvalidRequest: the schema says what has no rule here.
    """
    maker = _Rules(prefix, schema, is_strict)
    maker.lines.append(f"{prefix}: {_quoted(f'{name}(')} {maker.arguments()} {_quoted(')')}")
    return maker.lines


class _Rules:
    def __init__(self, prefix: str, root: Schema, is_strict: bool) -> None:
        self._is_strict = is_strict
        self.lines: list[str] = []
        self._prefix = prefix
        self._root = root
        self._by_reference: dict[str, str] = {}
        self._any = ""
        self._num_names = 0

    def arguments(self) -> str:
        root = self._resolved(self._root)
        self._check_keys(root, "object")
        named: list[tuple[str, bool]] = []
        others: list[tuple[str, bool]] = []
        required = set(root.get("required", ()))
        for key, schema in root.get("properties", {}).items():
            value, is_needed = self._value(schema), key in required
            if can_name(key):
                named.append((f"{_quoted(f'{key}=')} {value}", is_needed))
            else:
                others.append((f"{_quoted(f'{_literal(key)}: ')} {value}", is_needed))
        missing = required - set(root.get("properties", {}))
        if missing and self._is_strict:
            raise _refusal(f"requires {min(missing)!r}, of which it says nothing")
        if others:
            named.append((f'"**{{" {self._list(others)} "}}"', any(needed for _, needed in others)))
        return self._list(named)

    def _value(self, schema: Any) -> str:
        """The name of a rule for values of `schema`."""
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, dict):
            raise _refusal("has a part that nothing satisfies")
        if "$ref" in schema:
            return self._referred(schema)
        return self._rule(self._choices(schema))

    def _referred(self, schema: Schema) -> str:
        reference = schema["$ref"]
        if self._is_strict and set(schema) - _SILENT - {"$ref"}:
            raise _refusal("says more beside a $ref")
        if reference not in self._by_reference:
            name = self._by_reference[reference] = self._new_name()
            self.lines.append(f"{name}: {self._choices(self._target(reference))}")
        return self._by_reference[reference]

    def _choices(self, schema: Schema) -> str:
        if "$ref" in schema:
            return self._referred(schema)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            self._check_keys(schema, *_KNOWN, also=("const", "enum"))
            return " | ".join(_quoted(_literal(value)) for value in values)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                if self._is_strict and set(schema) - _SILENT - {key}:
                    raise _refusal(f"says more beside {key}")
                return " | ".join(self._value(case) for case in schema[key])
        said = schema.get("type", _ANY)
        kinds = [said] if isinstance(said, str) else list(said)
        self._check_keys(schema, *kinds)
        return " | ".join(self._of_kind(kind, schema) for kind in kinds)

    def _of_kind(self, kind: str, schema: Schema) -> str:
        if kind in _LEAVES:
            if kind == "number" and not _KNOWN[kind] & set(schema):
                return _NUMBER
            own = {key: value for key, value in schema.items() if key in _KNOWN[kind]}
            return self._rule(f"%json {json_schema.body(json.dumps({'type': kind, **own}))}")
        if kind == "boolean":
            return '"True" | "False"'
        if kind == "null":
            return '"None"'
        if kind == "array":
            return self._array(schema)
        return self._object(schema)

    def _array(self, schema: Schema) -> str:
        item = self._value(schema.get("items", True))
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most is not None and int(most) < max(1, least):
            if least:
                raise _refusal("has a list that nothing satisfies")
            return '"[]"'
        more = f"{{{max(0, least - 1)},{'' if most is None else int(most) - 1}}}"
        filled = f'{item} (", " {item}){more}'
        return f'"[" {filled} "]"' if least else f'"[" ({filled})? "]"'

    def _object(self, schema: Schema) -> str:
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if self._is_strict and required - set(properties):
            raise _refusal(f"requires {min(required - set(properties))!r}, of which it says nothing")
        members = [
            (f"{_quoted(f'{_literal(key)}: ')} {self._value(value)}", key in required)
            for key, value in properties.items()
        ]
        others = schema.get("additionalProperties", not properties)
        if others is False or properties:  # further members are allowed to stay away
            return f'"{{" {self._list(members)} "}}"'
        text = self._of_kind("string", {})
        pair = self._rule(f'{text} ": " {self._value(others)}')
        return f'"{{" ({pair} (", " {pair})*)? "}}"'

    def _list(self, members: Sequence[tuple[str, bool]]) -> str:
        """Members in their order, separated; those that are not needed may be missing."""
        fresh = begun = _NOTHING  # rules for what may follow: nothing so far, or something before it
        for text, is_needed in reversed(members):
            first = f"{text} {begun}"
            later = f'", " {first}'
            fresh = self._rule(first if is_needed else f"{first} | {fresh}")
            begun = self._rule(later if is_needed else f"{later} | {begun}")
        return fresh

    def _anything(self) -> str:
        if not self._any:
            self._any = self._new_name()
            self.lines.append(f"{self._any}: {' | '.join(self._of_kind(kind, {}) for kind in _ANY)}")
        return self._any

    def _rule(self, choices: str) -> str:
        name = self._new_name()
        self.lines.append(f"{name}: {choices}")
        return name

    def _new_name(self) -> str:
        self._num_names += 1
        return f"{self._prefix}_{self._num_names}"

    def _resolved(self, schema: Schema) -> Schema:
        return self._target(schema["$ref"]) if "$ref" in schema else schema

    def _target(self, reference: str) -> Schema:
        found: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, dict) else None
        if not reference.startswith("#") or not isinstance(found, dict):
            raise _refusal(f"refers to {reference[:80]!r}, which cannot be found")
        return found

    def _check_keys(self, schema: Schema, *kinds: str, also: Sequence[str] = ()) -> None:
        known = _SILENT | {"type", *also}.union(*(_KNOWN.get(kind, frozenset()) for kind in kinds))
        unknown = sorted(set(schema) - known)
        if unknown and self._is_strict:
            raise _refusal(f"uses what calls in Python cannot be held to: {', '.join(unknown)}")


def _literal(value: Any) -> str:
    """A JSON value as Python writes it, strings as everywhere here in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    return str(value)  # True, None and numbers


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(f"The schema {what}.", param=PARAM)
