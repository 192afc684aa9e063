"""How large and how entangled a schema may be, seen before anything is built from it.

Owns the bounds that the grammar library lacks: it compiles what lies side by side in milliseconds, but the intersection
of several patterns, or of patterns with many cases, takes it exponential time. `grammar.json_schema` calls it with the
decoded schema. Knows no grammar.

What is said in terms of schemas is applied to every object in the JSON, whether it is a schema there or a mere value;
a value so odd as to break a bound is refused with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inference.errors import InvalidRequest

PARAM = "response_format"
MAX_DEPTH = 64  # of the schema's JSON
MAX_OPTIONAL = 400  # properties of one object: all of them are possible at once, for every token of a key
MAX_OBJECT_CASES = 500  # of one anyOf or oneOf: all of them are possible at once as well
MAX_PATTERNS_AT_ONCE = 3  # that one string must match together; ten can take a second, each two more ten times as long
MAX_MERGES = 100  # strings with several patterns, each as often as there are cases for it; one takes up to 10 ms
MAX_KEY_PATTERN_PAIRS = 5_000  # pairs of patterns for keys, which must exclude each other; one takes 30 us
_CAP = 1_000_000  # numbers of cases multiply; nothing beyond this is told apart

_OBJECT_SIGNS = frozenset({"properties", "patternProperties", "additionalProperties", "$ref"})

JsonObject = dict[str, Any]


def check(schema: JsonObject) -> None:
    """Return, or raise InvalidRequest that says which bound the schema breaks."""
    objects = list(_objects(schema))
    for item in objects:
        _check_breadth(item)
    knots = _Knots(schema)
    num_merges = num_pairs = 0
    for item in objects:
        num_patterns, num_cases = knots.of(item)
        if num_patterns > MAX_PATTERNS_AT_ONCE:
            raise _refusal(f"asks {num_patterns} patterns of one string; {MAX_PATTERNS_AT_ONCE} are the most")
        num_merges += num_cases if num_patterns > 1 else 0
        key_patterns = item.get("patternProperties")
        num_keys = len(key_patterns) if isinstance(key_patterns, dict) else 0
        num_pairs += num_cases * num_keys * num_keys
    if num_merges > MAX_MERGES:
        raise _refusal(f"has more than {MAX_MERGES} strings that must match several patterns at once")
    if num_pairs > MAX_KEY_PATTERN_PAIRS:
        raise _refusal("has too many patternProperties")


def too_deep() -> InvalidRequest:
    return _refusal(f"is nested too deeply; {MAX_DEPTH} levels are the most")


def _refusal(what: str) -> InvalidRequest:
    return InvalidRequest(f"The schema {what}.", param=PARAM)


def _objects(schema: JsonObject) -> Iterator[JsonObject]:
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        yield from (item for item in level if isinstance(item, dict))
        children = (child for item in level for child in (item.values() if isinstance(item, dict) else item))
        level = [child for child in children if isinstance(child, dict | list)]
    if level:
        raise too_deep()


def _check_breadth(item: JsonObject) -> None:
    for name in ("anyOf", "oneOf"):
        num_objects = sum(
            isinstance(case, dict) and bool(_OBJECT_SIGNS & case.keys()) for case in _list(item.get(name))
        )
        if num_objects > MAX_OBJECT_CASES:
            raise _refusal(f"has {num_objects:,} cases for objects in one {name}; {MAX_OBJECT_CASES} are the most")
    properties, required = item.get("properties"), item.get("required")
    if not isinstance(properties, dict) or len(properties) <= MAX_OPTIONAL:
        return
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    num_optional = len(properties.keys() - needed)
    if num_optional > MAX_OPTIONAL:
        raise _refusal(f"has {num_optional:,} optional properties in one object; {MAX_OPTIONAL} are the most")


class _Knots:
    """How many patterns a schema asks of one string, and in how many cases, references and `allOf` included."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._known: dict[int, tuple[int, int]] = {}  # by identity: the tree is not changed meanwhile

    def of(self, item: object) -> tuple[int, int]:
        if not isinstance(item, dict):
            return 0, 1
        if id(item) not in self._known:
            self._known[id(item)] = (0, 1)  # a circle adds nothing on its second round
            self._known[id(item)] = self._count(item)
        return self._known[id(item)]

    def _count(self, item: JsonObject) -> tuple[int, int]:
        num_patterns = sum(isinstance(item.get(name), str) for name in ("pattern", "format"))
        num_patterns += any(item.get(name) is not None for name in ("minLength", "maxLength"))
        num_cases = 1
        together = [self.of(child) for child in _list(item.get("allOf"))]
        if isinstance(item.get("$ref"), str):
            together.append(self._target(item["$ref"]))
        for name in ("anyOf", "oneOf"):
            cases = [self.of(child) for child in _list(item.get(name))]
            if cases:
                together.append((max(patterns for patterns, _ in cases), sum(number for _, number in cases)))
        for patterns, number in together:
            num_patterns += patterns
            num_cases = min(_CAP, num_cases * number)
        return num_patterns, num_cases

    def _target(self, reference: str) -> tuple[int, int]:
        item: Any = self._root
        if not reference.startswith("#"):
            return 1, 1  # found by its name, which is rare; what it holds is counted where it stands
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(item, dict) or part not in item:
                return 1, 1
            item = item[part]
        return self.of(item)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
