"""Strict tools over a real vocabulary: whatever is sampled, a call that has begun is one of the schema."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from inference.coordination.log_view import tool_calls_of
from inference.messages.generation import GenerationRequest, SamplingParams, ToolSpec
from inference.output.tool_calls import ToolCallParser
from inference.prompt.builder import PromptBuilder
from inference.worker.attempt.context import Served
from tests.model.test_prompts import ask

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = ToolSpec(name="weather", parameters=json.dumps(SCHEMA), is_strict=True)


def strict(**sampling: int) -> GenerationRequest:
    return msgspec.structs.replace(ask("weather?"), tools=(WEATHER,), sampling=SamplingParams(**sampling))


@pytest.mark.parametrize("seed", range(5))
def test_a_begun_call_follows_its_schema_whatever_is_drawn(smollm3_builder: PromptBuilder, seed: int) -> None:
    model, tokenizer = Served.of(smollm3_builder), smollm3_builder.tokenizer
    asked = strict()
    prompt = smollm3_builder.build(asked)
    constraint = model.constraint_for(asked, model.sampling_of(asked), prompt, ())
    assert constraint is not None
    opener, thinks, answers = (tokenizer.id_of(tag) for tag in ("<tool_call>", "<think>", "</think>"))
    random, answer = np.random.default_rng(seed), bytearray()
    for token in (*([] if prompt.starts_thinking else [thinks]), opener, *tokenizer.encode_text("free"), answers):
        assert constraint.is_open, "a tag in a thought begins nothing"
        constraint.accept(token)
    for _ in range(2):
        for token in (*tokenizer.encode_text("Let me see. "), opener):
            assert constraint.is_open
            constraint.accept(token)
            answer += tokenizer.token_bytes(token)
        num_tokens = 0
        while not constraint.is_open:
            bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")[: tokenizer.vocab_size]
            token = int(random.choice(np.flatnonzero(bits)))
            assert token not in model.prompts.kit.end_tokens
            constraint.accept(token)
            answer += tokenizer.token_bytes(token)
            num_tokens += 1
            assert num_tokens < 200
    parser = ToolCallParser((WEATHER,), id_of=str)
    calls = tool_calls_of(parser.feed(answer.decode()) + parser.flush())
    assert len(calls) == 2
    for call in calls:
        arguments = json.loads(call.arguments)
        assert arguments["city"] in ("Oslo", "Rome")
        assert set(arguments) <= {"city", "days"}
        assert 1 <= arguments.get("days", 1) <= 9


def test_an_attempt_that_ended_in_a_strict_call_goes_on_in_it(smollm3_builder: PromptBuilder) -> None:
    model, tokenizer = Served.of(smollm3_builder), smollm3_builder.tokenizer
    asked = msgspec.structs.replace(strict(thinking_budget=50), thinking=False)
    prompt = smollm3_builder.build(asked)
    begun = [*tokenizer.encode_text("Well: "), tokenizer.id_of("<tool_call>"), *tokenizer.encode_text('\n{"name": "')]
    constraint = model.constraint_for(asked, model.sampling_of(asked), prompt, begun)
    assert constraint is not None
    assert not constraint.is_open
    with pytest.raises(Exception, match="no call as asked for"):
        model.constraint_for(asked, model.sampling_of(asked), prompt, [*begun, *tokenizer.encode_text("nope")])
