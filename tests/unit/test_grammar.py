"""Whatever the masks of a schema let through is JSON of that schema, also where an attempt goes on."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inference.errors import EngineError, InvalidRequest
from inference.grammar.matcher import Grammars
from inference.prompt.kit import PromptKit
from inference.prompt.tokenizer import Tokenizer
from tests.unit.grammar_walk import Walk, grammars, kit, spelled  # noqa: F401  (fixtures)

ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "maxLength": 12},
        "number": {"type": "integer", "minimum": 1, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["home", "wörk 🦊", 'a"b', None, 4]}, "maxItems": 3},
    },
    "required": ["street", "number"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "children": {"$ref": "#/$defs/children"}},
    "required": ["name", "children"],
    "additionalProperties": False,
    "$defs": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
}


def follows_address(value: Any) -> bool:
    tags = value.get("tags", [])
    return (
        set(value) <= {"street", "number", "tags"}
        and isinstance(value["street"], str)
        and len(value["street"]) <= 12
        and type(value["number"]) is int
        and 1 <= value["number"] <= 999
        and len(tags) <= 3
        and all(tag in ("home", "wörk 🦊", 'a"b', None, 4) for tag in tags)
    )


def follows_tree(value: Any) -> bool:
    return (
        set(value) == {"name", "children"}
        and len(value["name"]) <= 3
        and len(value["children"]) <= 2
        and all(follows_tree(child) for child in value["children"])
    )


CASES: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "address": (ADDRESS, follows_address),
    "tree": (TREE, follows_tree),
    "any object": ({"type": "object"}, lambda value: isinstance(value, dict)),
    "anything": ({}, lambda value: True),
    "true": (True, lambda value: True),
    "one of some": ({"enum": ["a", 1, None, {"b": [2]}]}, lambda value: value in ("a", 1, None, {"b": [2]})),
    "a number": ({"type": "number", "minimum": -1, "maximum": 1}, lambda value: -1 <= value <= 1),
    "text by a pattern": (
        {"type": "string", "pattern": "^[a-f]{2,4}-\\d+$", "maxLength": 9},
        lambda value: bool(re.fullmatch(r"[a-f]{2,4}-\d+", value)) and len(value) <= 9,
    ),
    "a date": ({"type": "string", "format": "date"}, lambda value: bool(re.fullmatch(r"\d{4}-\d\d-\d\d", value))),
    "either": ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, lambda value: value in (True, False, None)),
    "a pair": (
        {"type": "array", "prefixItems": [{"const": "é"}, {"type": "boolean"}], "items": False, "minItems": 2},
        lambda value: value[0] == "é" and type(value[1]) is bool and len(value) == 2,
    ),
    "what looks special": ({"const": "<|im_end|>\u0000"}, lambda value: value == "<|im_end|>\u0000"),
}


@pytest.fixture(scope="module")
def real_kit() -> PromptKit:
    from inference import catalog
    from inference.llama.vocab import kit_of

    entry = catalog.Catalog().entry("smollm2-135m")
    return kit_of(catalog.resolve(entry), entry)


@pytest.fixture(scope="module")
def real_grammars(real_kit: PromptKit) -> Grammars:
    return Grammars.of(real_kit)


# -- what the masks let through


@pytest.mark.parametrize("name", CASES)
def test_every_walk_through_the_masks_gives_json_of_the_schema(kit: PromptKit, grammars: Grammars, name: str) -> None:
    schema, follows = CASES[name]
    for seed in range(6):
        walk = Walk(kit, seed)
        text = walk.text(walk.answer(grammars.constraint(json.dumps(schema))))
        assert follows(json.loads(text)), text


@pytest.mark.model
@pytest.mark.parametrize("name", CASES)
def test_so_does_every_walk_over_a_real_vocabulary(real_kit: PromptKit, real_grammars: Grammars, name: str) -> None:
    schema, follows = CASES[name]
    walk = Walk(real_kit, 7)
    for _ in range(3):
        text = walk.text(walk.answer(real_grammars.constraint(json.dumps(schema)), patience=10))
        assert follows(json.loads(text)), text


def test_special_tokens_never_come_but_the_one_that_ends_an_answer(kit: PromptKit, grammars: Grammars) -> None:
    special = set(kit.special_ids.values()) | {kit.tokens.index("[PAD]")}
    walk = Walk(kit, 3)
    for schema in ({"type": "string"}, {"type": "integer"}, {"type": "object"}):
        constraint = grammars.constraint(json.dumps(schema))
        for _ in range(40):
            if constraint.is_complete:
                break
            allowed = walk.allowed(constraint)
            assert not special & set(allowed) - set(kit.end_tokens)
            constraint.accept(walk.random.choice([t for t in allowed if t not in kit.end_tokens]))


def test_it_may_end_only_where_the_schema_is_satisfied(kit: PromptKit, grammars: Grammars) -> None:
    (end,) = kit.end_tokens
    walk = Walk(kit, 0)
    constraint = grammars.constraint('{"type":"integer"}')
    assert end not in walk.allowed(constraint)
    constraint.accept(kit.tokens.index("-"))
    assert end not in walk.allowed(constraint)
    constraint.accept(kit.tokens.index("7"))
    assert end in walk.allowed(constraint)
    assert not constraint.is_complete  # another digit may follow


def test_the_last_brace_completes_the_answer_and_only_an_end_may_follow(kit: PromptKit, grammars: Grammars) -> None:
    constraint = grammars.constraint('{"type":"object"}', spelled(kit, '{"a": [1, 2]'))
    assert not constraint.is_complete
    constraint.accept(kit.tokens.index("}"))
    assert constraint.is_complete
    assert Walk(kit, 0).allowed(constraint) == list(kit.end_tokens)


def test_blanks_cannot_go_on_and_on(kit: PromptKit, grammars: Grammars) -> None:
    walk = Walk(kit, 0)
    blank = {kit.tokens.index(text) for text in ("Ġ", "Ċ", "ĊĠĠĠĠ", "ĠĠ")}
    constraint = grammars.constraint('{"type":"array"}', [kit.tokens.index("[")])
    num_blank = 0
    while usable := blank & set(walk.allowed(constraint)):
        constraint.accept(max(usable, key=lambda token: kit.tokens[token][:1] == "Ċ"))
        num_blank += 1
    assert 0 < num_blank <= 17
    assert walk.allowed(constraint)


def test_compact_and_pretty_json_may_both_be_written(kit: PromptKit, grammars: Grammars) -> None:
    value = {"street": "Am Tor", "number": 4, "tags": ["home", None]}
    for text in (
        json.dumps(value, separators=(",", ":")),
        json.dumps(value),
        json.dumps(value, indent=2),
        json.dumps(value, indent=4),
    ):
        assert grammars.constraint(json.dumps(ADDRESS), spelled(kit, text)).is_complete


def test_an_answer_goes_on_wherever_an_earlier_attempt_left_it(kit: PromptKit, grammars: Grammars) -> None:
    walk = Walk(kit, 5)
    schema = json.dumps(ADDRESS)
    tokens = walk.answer(grammars.constraint(schema))
    for cut in range(len(tokens) + 1):
        fresh, gone_on = grammars.constraint(schema), grammars.constraint(schema, np.array(tokens[:cut], np.int32))
        for token in tokens[:cut]:
            fresh.accept(token)
        assert gone_on.is_complete == fresh.is_complete == (cut == len(tokens))
        assert (gone_on.mask() == fresh.mask()).all()


def test_masks_have_a_bit_for_every_token_of_the_padded_vocabulary(kit: PromptKit, grammars: Grammars) -> None:
    mask = grammars.constraint("{}").mask()
    assert mask.dtype == np.uint32
    assert mask.shape == (-(-len(kit.tokens) // 32),)


# -- what goes wrong on the way


def test_a_token_that_the_mask_forbids_is_an_engine_error(kit: PromptKit, grammars: Grammars) -> None:
    constraint = grammars.constraint('{"type":"object"}')
    with pytest.raises(EngineError):
        constraint.accept(kit.tokens.index("x"))


def test_text_that_does_not_follow_the_schema_is_refused(kit: PromptKit, grammars: Grammars) -> None:
    with pytest.raises(InvalidRequest, match="written so far"):
        grammars.constraint('{"type":"object"}', spelled(kit, '{"a" 1'))


def test_a_part_that_nothing_satisfies_ends_the_answer_with_a_typed_error(kit: PromptKit, grammars: Grammars) -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "type": "object"}
    schema |= {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}}
    constraint = grammars.constraint(json.dumps(schema))
    with pytest.raises(InvalidRequest) as caught:
        Walk(kit, 1).answer(constraint)
    assert caught.value.param == "response_format"
    assert not constraint.mask().any()


def test_one_set_of_grammars_serves_many_threads(kit: PromptKit) -> None:
    grammars = Grammars(kit, Tokenizer(kit))
    texts: list[str] = []

    def write(seed: int) -> None:
        walk = Walk(kit, seed)
        texts.append(walk.text(walk.answer(grammars.constraint(json.dumps(ADDRESS)))))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 6
    assert all(follows_address(json.loads(text)) for text in texts)
