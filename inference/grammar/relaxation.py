"""A schema that an answer cannot be held to, made into one that it can: of its keywords as many as possible stay.

Owns which parts go, and what is said of them. An answer that follows the schema follows the relaxed one as well, so
only less is promised; what can be said in other keywords is, and loses nothing. Not for the limits of
`grammar.schema_limits` and of `grammar.json_schema`, nor for a schema that nothing satisfies: these stay refusals.

Each part that the grammar library reports is cured, then the whole is compiled again, a few times at most: the work is
bounded by theirs. Web nodes relax an answer's schema before it is submitted; for a tool, whose schema the model shall
read as it is, they and workers come to the same result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.grammar import json_schema, patterns
from inference.grammar.json_schema import Unheld
from inference.grammar.schema_limits import MAX_PATTERNS_AT_ONCE, PARAM, JsonObject

MAX_ROUNDS = 12
MAX_KEPT = 32  # results: a program asks with the same schema again and again
MAX_TRIED = 100  # patterns or formats, each alone; where more are in question all go
MAX_BOUND = 2**53  # whole numbers beyond are no longer exact everywhere
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_NOT_SCHEMAS = frozenset({"const", "enum", "default", "example", "examples", "required", "type", "x-guidance"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
# Gone together with the first of them that is reported, which saves rounds.
_UNKNOWN = frozenset(
    "not if then else uniqueItems contains minContains maxContains propertyNames dependentRequired dependentSchemas "
    "dependencies unevaluatedItems unevaluatedProperties $dynamicRef $dynamicAnchor $recursiveRef".split()
)


@dataclass(frozen=True)
class Relaxed:
    """`schema` is JSON text; `losses` are the keywords that it no longer has."""

    schema: str
    losses: tuple[str, ...] = ()

    def warning(self, subject: str) -> str:
        """A sentence about `subject`, which follows the schema; empty where nothing is lost."""
        if not self.losses:
            return ""
        return f"{subject} is held to its schema but for what cannot be enforced: {', '.join(self.losses)}."


@lru_cache(maxsize=MAX_KEPT)
def relaxed(schema: str, *, is_strict: bool = False) -> Relaxed:
    """What an answer can be held to of `schema`, which is JSON text; with `is_strict` all of it.

    Raises:
        InvalidRequest: no schema, one beyond the limits, one that nothing satisfies; or (`is_strict`) one that an
        answer cannot be held to, and the sentence names the keyword.
    """
    try:
        json_schema.check(schema)
        return Relaxed(schema)
    except Unheld as first:
        fault = first
    easing = _Easing(msgspec.json.decode(schema))
    for _ in range(MAX_ROUNDS):
        easing.ease(fault)
        if is_strict and easing.losses:
            break
        text = msgspec.json.encode(easing.root).decode()
        try:
            json_schema.check(text)
            return Relaxed(text, tuple(easing.losses))
        except Unheld as again:
            fault = again
    raise InvalidRequest(fault.message, param=PARAM)


class _Easing:
    """A decoded schema, changed where it stands. `losses` has every keyword once, in the order of their going."""

    def __init__(self, root: JsonObject) -> None:
        self.root = root
        self.losses: dict[str, None] = {}
        self._num_rounds: Counter[str] = Counter()

    def ease(self, fault: Unheld) -> None:
        self._num_rounds[fault.kind] += 1
        is_first = self._num_rounds[fault.kind] == 1
        match fault.kind:
            case "keywords":
                self._drop_keywords(frozenset(fault.names))
            case "formats":
                self._drop_formats()
            case "cases":
                self._open_cases()
            case "range":
                self._drop_bounds(beyond=MAX_BOUND if is_first else 0)
            case "reference":
                self._drop_dialect(fault.names[0])
            case "key_patterns":
                self._drop_key_patterns(only_bad=False)
            case "patterns":
                if not is_first or not self._drop_assertions():
                    self._drop_bad_patterns()

    def _drop_keywords(self, reported: frozenset[str]) -> None:
        for item in list(_schemas(self.root)):
            _say_names_otherwise(item)
            for name in sorted((reported | _UNKNOWN) & item.keys()):
                del item[name]
                self.losses[name] = None

    def _drop_formats(self) -> None:
        holders = [item for item in _schemas(self.root) if isinstance(item.get("format"), str)]
        bad = _bad("format", {item["format"] for item in holders})
        for item in holders:
            if item["format"] in bad:
                self.losses[f"format {json.dumps(item.pop('format'))[:80]}"] = None

    def _drop_bounds(self, *, beyond: float) -> None:
        for item in _schemas(self.root):
            for name in sorted(_BOUNDS & item.keys()):
                if isinstance(item[name], int | float) and abs(item[name]) >= beyond:
                    del item[name]
                    self.losses[name] = None

    def _drop_dialect(self, address: str) -> None:
        """`$schema` says how a schema is to be read, and nothing of answers."""
        for item in _schemas(self.root):
            if item.get("$schema") == address:
                del item["$schema"]

    def _open_cases(self) -> None:
        for item in list(_schemas(self.root)):
            if "oneOf" in item:
                cases = item.pop("oneOf")
                if "anyOf" in item:
                    item.setdefault("allOf", []).append({"anyOf": cases})
                else:
                    item["anyOf"] = cases
                self.losses["oneOf (taken as anyOf)"] = None

    def _drop_assertions(self) -> bool:
        """Whether there were any."""
        found = False
        for item in list(_schemas(self.root)):
            pattern = item.get("pattern")
            if not isinstance(pattern, str) or not patterns.has_assertions(pattern):
                continue
            found = True
            parts = None if "allOf" in item else patterns.parted(pattern)
            *ahead, item["pattern"] = parts or [patterns.without_assertions(pattern)]
            kept = ahead[: max(0, MAX_PATTERNS_AT_ONCE - 1 - _num_others(item))]
            if kept:
                item["allOf"] = [{"pattern": part} for part in kept]
            if parts is None or len(kept) < len(ahead):
                self.losses["look-around in a pattern"] = None
        return found

    def _drop_bad_patterns(self) -> None:
        holders = [item for item in _schemas(self.root) if isinstance(item.get("pattern"), str)]
        bad = _bad("pattern", {item["pattern"] for item in holders})
        for item in holders:
            if item["pattern"] in bad:
                del item["pattern"]
                self.losses["pattern"] = None
        self._drop_key_patterns(only_bad=True)

    def _drop_key_patterns(self, *, only_bad: bool) -> None:
        """Without its key patterns an object says nothing of other keys: they would be forbidden by the wrong rule."""
        holders = [item for item in _schemas(self.root) if isinstance(item.get("patternProperties"), dict)]
        keys = {key for item in holders for key in item["patternProperties"]}
        bad = _bad("pattern", keys) if only_bad else frozenset()
        for item in holders:
            if not only_bad and len(item["patternProperties"]) < 2:
                continue  # nothing there that could overlap
            if not only_bad or bad & item["patternProperties"].keys():
                del item["patternProperties"]
                item.pop("additionalProperties", None)
                self.losses["patternProperties"] = None


def _schemas(root: object) -> Iterator[JsonObject]:
    """Every object that is, or may be, a schema; one that is a value, or holds schemas by name, is none."""
    pending: list[tuple[object, bool]] = [(root, False)]
    while pending:
        item, is_by_name = pending.pop()
        if isinstance(item, list):
            pending += [(child, False) for child in item]
        elif isinstance(item, dict):
            if is_by_name:
                pending += [(child, False) for child in item.values()]
                continue
            yield item
            pending += [(child, key in _NAMED_SCHEMAS) for key, child in item.items() if key not in _NOT_SCHEMAS]


def _say_names_otherwise(item: JsonObject) -> None:
    """`propertyNames` in other keywords, where these say the same."""
    names = item.get("propertyNames")
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return
    said = names.keys() - {"type", "title", "description"}
    others: Any = item.get("additionalProperties", True)
    if said and {"properties", "patternProperties"} & item.keys():
        return
    if said == {"pattern"} and isinstance(names["pattern"], str) and not patterns.has_assertions(names["pattern"]):
        item["patternProperties"] = {names["pattern"]: others}
    elif said == {"enum"} and isinstance(names["enum"], list) and all(isinstance(name, str) for name in names["enum"]):
        item["properties"] = dict.fromkeys(names["enum"], others)
    elif said:
        return
    if said:
        item["additionalProperties"] = False
    del item["propertyNames"]


def _num_others(item: JsonObject) -> int:
    """What else the string of `item` must match, as `schema_limits` counts it."""
    return isinstance(item.get("format"), str) + any(item.get(name) is not None for name in ("minLength", "maxLength"))


def _bad(keyword: str, values: set[str]) -> frozenset[str]:
    """Those values of `keyword` that cannot be followed, each by itself."""
    if len(values) > MAX_TRIED:
        return frozenset(values)
    return frozenset(value for value in values if not _is_held({"type": "string", keyword: value}))


def _is_held(schema: JsonObject) -> bool:
    try:
        json_schema.check(msgspec.json.encode(schema).decode())
    except InvalidRequest:
        return False
    return True
