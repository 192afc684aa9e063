"""JSON schemas: which are refused and how fast, and that whatever the masks let through is JSON of that schema."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inference.errors import EngineError, InvalidRequest
from inference.grammar import json_schema
from inference.grammar.matcher import Grammars, JsonConstraint
from inference.prompt.kit import PromptKit, TokenType
from inference.prompt.tokenizer import Tokenizer

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


def small_kit() -> PromptKit:
    """Every byte, some longer tokens (two of them with the same bytes as what JSON needs), and special ones."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_ = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    longer = ['{"', '":', '"}', '","', "}}", "street", "ĊĠĠĠĠ", "ĠĠ", "12", "true", "null", "Ã©", "ðŁ", "]}"]
    special = ["<|im_start|>", "<|im_end|>", '{"', '"', "<think>", "[PAD]"]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED] * 2 + [TokenType.UNUSED]
    tokens = (*bytes_, *longer, *special)
    end = tokens.index("<|im_end|>")
    return PromptKit(
        model="small",
        pre_tokenizer="gpt-2",
        tokens=tokens,
        token_types=bytes([TokenType.NORMAL] * (len(bytes_) + len(longer)) + kinds),
        merges=(),
        chat_template="",
        context_tokens=100,
        end_tokens=(end,),
    )


def spelled(kit: PromptKit, text: str) -> list[int]:
    """Byte by byte: the kit's special token that looks like a quote keeps its tokenizer from writing one."""
    tokenizer = Tokenizer(kit)
    ids = {tokenizer.token_bytes(token): token for token in range(255, -1, -1)}
    return [ids[bytes([byte])] for byte in text.encode()]


class Walk:
    """Draws tokens that a constraint allows, ever more often those that end something."""

    def __init__(self, kit: PromptKit, seed: int) -> None:
        self.kit = kit
        self.tokenizer = Tokenizer(kit)
        self.random = random.Random(seed)

    def allowed(self, constraint: JsonConstraint) -> list[int]:
        bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
        return [int(i) for i in np.flatnonzero(bits)]

    def answer(self, constraint: JsonConstraint, *, patience: int = 30) -> list[int]:
        tokens: list[int] = []
        while not constraint.is_complete:
            allowed = self.allowed(constraint)
            assert allowed, "a dead end"
            ends = [token for token in allowed if token in self.kit.end_tokens]
            if ends and self.random.random() < 0.3:
                return tokens
            choices = [token for token in allowed if token not in self.kit.end_tokens]
            if len(tokens) > patience:  # come to an end
                closing = [t for t in choices if set(self.tokenizer.token_bytes(t)) <= set(b'"]}0')]
                choices = closing or choices
            token = self.random.choice(choices)
            constraint.accept(token)
            tokens.append(token)
            assert len(tokens) < 3_000
        return tokens

    def text(self, tokens: list[int]) -> str:
        return b"".join(map(self.tokenizer.token_bytes, tokens)).decode()


@pytest.fixture(scope="module")
def kit() -> PromptKit:
    return small_kit()


@pytest.fixture(scope="module")
def grammars(kit: PromptKit) -> Grammars:
    return Grammars.of(kit)


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


# -- which schemas are refused


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def referring(num_levels: int, keyword: str) -> dict[str, Any]:
    """Few characters that stand for very many schemas."""
    levels = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(num_levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**levels, f"d{num_levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a":NaN}', "not JSON"),
        ('{"const":"\\ud83d"}', "not JSON"),
        ('{"const":"\ud83d"}', "surrogate"),
        ("[]", "a schema is an object"),
        ("null", "a schema is an object"),
        ("false", "allows nothing"),
        ("[" * 50_000, "nested too deeply"),
        ({"not": {"type": "string"}}, "not supported here: not"),
        ({"type": "array", "uniqueItems": True}, "not supported here: uniqueItems"),
        ({"if": {}, "then": {}}, "not supported here: if, then"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "not supported here: x-guidance"),
        ({"type": "strin"}, "strin"),
        ({"type": 5}, "type"),
        ({"properties": []}, "properties"),
        ({"type": "string", "format": "nope"}, "nope"),
        ({"type": "string", "pattern": "(["}, "pattern .* unclosed character class"),
        ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
        ({"$ref": "#"}, "nothing satisfies"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "http://127.0.0.1:1/x"}, "lies outside"),
        ({"$ref": "file:///etc/passwd"}, "lies outside"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "anyOf"),
        ({"type": "integer", "multipleOf": 999_999_999_999_989}, "too large or too complex"),
        # too large or too entangled
        ({"enum": ["x" * 1000] * 101}, "100,000 characters"),
        (nested(900), "nested too deeply"),
        ({"properties": {f"p{i}": {} for i in range(500)}}, "500 optional properties"),
        ({"allOf": [{"type": "string", "pattern": f".*a.{{{i}}}b.*"} for i in range(40)]}, "40 patterns"),
        ({"type": "object", "patternProperties": {f"^k{i}x$": {} for i in range(800)}}, "patternProperties"),
        (
            {
                "type": "array",
                "prefixItems": [{"type": "string", "pattern": f"a{i}", "maxLength": 9} for i in range(200)],
            },
            "several patterns",
        ),
        (
            {
                "allOf": [
                    {"type": "string", "pattern": "a", "maxLength": 5},
                    {"anyOf": [{"minLength": i} for i in range(500)]},
                ]
            },
            "several patterns",
        ),
        (
            {
                "allOf": [
                    {"anyOf": [{"required": [f"p{i}"]}, {"properties": {f"q{i}": {"type": "null"}}}]} for i in range(20)
                ]
            },
            "too large or too complex",
        ),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_at_once_in_one_sentence(schema: Any, says: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match=says) as caught:
        json_schema.check(text)
    assert time.monotonic() - began < 5.0
    assert caught.value.param == "response_format"
    assert caught.value.message.endswith(".")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        nested(30),
        referring(20, "anyOf"),
        referring(20, "allOf"),
        {"enum": [f"value {i}" for i in range(5_000)]},
        {"type": "string", "pattern": "^(a|ab|abc){1,10000}$"},
        {"type": "string", "pattern": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"},
        {"type": "string", "pattern": "^(.*a.{200}b.*c.{200})$"},
        {"type": "string", "maxLength": 1_000_000},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10_000, "maxItems": 1_000_000},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}},
        {"properties": {f"p{i}": {} for i in range(2_000)}, "required": [f"p{i}" for i in range(2_000)]},
        {"const": "x" * 90_000},
        {"$schema": "http://json-schema.org/draft-07/schema#", "title": "t", "default": 1, "examples": [2]},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_large_schemas_that_can_be_followed_are_and_no_token_takes_long(
    kit: PromptKit, grammars: Grammars, schema: Any
) -> None:
    text = json.dumps(schema)
    began = time.monotonic()
    json_schema.check(text)
    assert time.monotonic() - began < 5.0
    constraint = grammars.constraint(text)
    walk = Walk(kit, 2)
    cpu_seconds = []
    for _ in range(60):
        choices = [token for token in walk.allowed(constraint) if token not in kit.end_tokens]
        if constraint.is_complete or not choices:
            break
        started = time.thread_time()
        try:
            constraint.accept(walk.random.choice(choices))
        except InvalidRequest:  # a bound of the engine's time was reached
            break
        cpu_seconds.append(time.thread_time() - started)
    assert max(cpu_seconds) < 0.05
