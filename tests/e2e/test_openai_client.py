"""The official `openai` client against a running site, unchanged."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Literal

import openai
import pydantic
import pytest

from inference import catalog
from inference.llama.vocab import kit_of
from inference.prompt.tokenizer import Tokenizer
from tests.fleet import MODEL, Fleet, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.model]


@pytest.fixture(scope="module")
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    key = fleet.api_key(fleet.person())
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key=key, max_retries=0) as made:
        yield made


def question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_whole_answer_with_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=question("What is the capital of France?"), temperature=0, max_tokens=32
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 0 < answer.usage.completion_tokens <= 32


def test_streamed_answer_equals_the_whole_one(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": question("Name three colours."), "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    pieces = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert text == whole.choices[0].message.content
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [p.choices[0].finish_reason for p in pieces if p.choices][-1] == whole.choices[0].finish_reason


def test_served_model_is_listed(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]


def test_errors_have_their_types(client: openai.OpenAI, fleet: Fleet) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nope", messages=question("x"))  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="tokens"):
        client.chat.completions.create(model=MODEL, messages=question("word " * 5000))  # type: ignore[arg-type]
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="wrong") as bad:
        bad.models.list()


def test_leaving_client_frees_the_slot(client: openai.OpenAI, fleet: Fleet) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=question("Write a very long story about the sea."), max_tokens=160, stream=True
    )  # type: ignore[call-overload]
    for number, _ in enumerate(stream):
        if number == 5:
            break
    stream.close()
    wait_for(lambda: all(w["slots"] == w["free_slots"] for w in fleet.workers()), "the slot is free again", 10.0)


def test_what_all_prompts_begin_with_is_read_once(client: openai.OpenAI, fleet: Fleet) -> None:
    """Once each slot has it: an empty one is taken first, and copying so little would cost more than reading it."""
    for number in range(fleet.workers()[0]["slots"] + 1):
        asked = client.chat.completions.create(model=MODEL, messages=question(f"What is {number}?"), max_tokens=1)  # type: ignore[call-overload]
    assert asked.usage.prompt_tokens_details.cached_tokens >= 20


class City(pydantic.BaseModel):
    name: str
    country: Literal["France", "Italy", "Spain"]
    num_inhabitants: int
    is_capital: bool


CITY_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Italy", "Spain"]},
        "districts": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["name", "country", "districts"],
    "additionalProperties": False,
}


def test_answer_in_json_follows_its_schema(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL,
        "messages": question("Tell me about Paris as JSON."),
        "max_tokens": 120,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY_SCHEMA}},
    }
    for seed, temperature in ((1, 0.0), (2, 1.5)):
        pieces = list(client.chat.completions.create(**asked, seed=seed, temperature=temperature, stream=True))  # type: ignore[call-overload]
        city = json.loads("".join(p.choices[0].delta.content or "" for p in pieces))
        assert list(city) == ["name", "country", "districts"]
        assert len(city["name"]) <= 20
        assert city["country"] in ("France", "Italy", "Spain")
        assert len(city["districts"]) <= 2
        assert pieces[-1].choices[0].finish_reason == "stop"


def test_client_parses_an_answer_into_its_own_type(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=question("Describe Rome."),  # type: ignore[arg-type]
        response_format=City,
        temperature=0,
        max_tokens=160,
    )
    city = answer.choices[0].message.parsed
    assert city is not None
    assert city.country in ("France", "Italy", "Spain")


def test_json_object_is_an_object_or_cut_by_its_limit(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=question("Give me a JSON object with the keys a and b."),  # type: ignore[arg-type]
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=60,
    )
    (choice,) = answer.choices
    assert choice.message.content is not None
    assert choice.message.content.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def test_schema_that_cannot_be_followed_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        client.chat.completions.create(
            model=MODEL,
            messages=question("x"),  # type: ignore[arg-type]
            response_format={  # type: ignore[arg-type]
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "array", "uniqueItems": True}, "strict": True},
            },
        )
    assert caught.value.param == "response_format"


def test_everyday_schema_is_followed_though_not_all_of_it_can_be_held(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^(?=.*[A-Z])(?!X)[A-Z0-9]{3,6}$"},
            "on": {"format": "date"},
        },
        "required": ["code"],
        "additionalProperties": False,
        "not": {"required": ["off"]},
    }
    asked = {
        "model": MODEL,
        "messages": question("Give me a code."),
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    answer = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    assert 3 <= len(json.loads(answer.choices[0].message.content)["code"]) <= 6
    assert "not" in answer.model_extra["warnings"][0]


def test_last_message_is_gone_on_with_and_only_what_is_new_is_told(client: openai.OpenAI) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Count on."},
        *question("Count to nine."),
        {"role": "assistant", "content": "1, 2, 3, 4, 5, 6,"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=turns, temperature=0, max_tokens=100_000)  # type: ignore[arg-type]
    assert answer.choices[0].message.content.lstrip().startswith("7")


def test_call_cut_by_its_limit_has_no_markup_and_is_too_long(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "tools": [WEATHER], "max_tokens": 14, "temperature": 0, "tool_choice": "required"}
    turns: list = question("How is the weather in Paris?")
    whole = client.chat.completions.create(**asked, messages=turns).choices[0]  # type: ignore[call-overload]
    chunks = [c.choices[0] for c in client.chat.completions.create(**asked, messages=turns, stream=True)]  # type: ignore[call-overload]
    assert whole.finish_reason == chunks[-1].finish_reason == "length"
    assert not whole.message.content and not any(chunk.delta.content for chunk in chunks)
    told = [call.function.arguments for call in whole.message.tool_calls or []]
    streamed = [call.function.arguments for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert "".join(told) == "".join(streamed)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_greedy_answer_are_of_the_likeliest_tokens(client: openai.OpenAI, stream: bool) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=question("Say hello in French, with an emoji."),
        temperature=0,
        extra_body={"repetition_penalty": 1.0},
        max_tokens=24,
        logprobs=True,
        top_logprobs=5,
        stream=stream,
    )  # type: ignore[call-overload]
    choices = [piece.choices[0] for piece in answer] if stream else list(answer.choices)
    told = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
    text = "".join((choice.delta if stream else choice.message).content or "" for choice in choices)
    assert b"".join(bytes(one.bytes) for one in told).decode() == text
    assert told
    for one in told:
        best = [top.logprob for top in one.top_logprobs]
        assert len(best) == 5
        assert best == sorted(best, reverse=True)
        assert one.logprob <= 0.0
        assert sum(math.exp(value) for value in best) <= 1.0 + 1e-6
        assert one.logprob == pytest.approx(best[0], abs=1e-6)


def test_bias_forbids_a_token(client: openai.OpenAI) -> None:
    entry = catalog.Catalog().entry(MODEL)
    tokenizer = Tokenizer(kit_of(catalog.resolve(entry), entry))
    asked = {
        "model": MODEL,
        "messages": question("What is 2 + 2?"),
        "temperature": 0,
        "max_tokens": 4,
        "logprobs": True,
    }
    first = client.chat.completions.create(**asked).choices[0].logprobs.content[0]  # type: ignore[call-overload]
    token = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes(first.bytes))
    other = client.chat.completions.create(**asked, logit_bias={str(token): -100})  # type: ignore[call-overload]
    assert other.choices[0].logprobs.content[0].bytes != first.bytes


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def test_required_tool_is_called_and_its_result_read(client: openai.OpenAI) -> None:
    """The small model knows no tools: they are told it in words, and a grammar holds it to the call."""
    asked = {"model": MODEL, "tools": [WEATHER], "max_tokens": 120, "temperature": 0}
    turns: list = question("How is the weather in Paris?")
    named = {"type": "function", "function": {"name": "weather"}}
    whole = client.chat.completions.create(**asked, messages=turns, tool_choice=named)  # type: ignore[call-overload]
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert len(arguments["city"]) <= 20 and arguments["unit"] in ("C", "F")
    assert (whole.choices[0].finish_reason, whole.choices[0].message.content) == ("tool_calls", None)
    with client.chat.completions.stream(
        **asked, messages=turns, tool_choice="required", parallel_tool_calls=False
    ) as s:  # type: ignore[call-overload]
        final = s.get_final_completion().choices[0]
    assert [json.loads(c.function.arguments).keys() for c in final.message.tool_calls] == [arguments.keys()]
    turns += [whole.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 degrees."}]
    answer = client.chat.completions.create(**asked, messages=turns, tool_choice="none")  # type: ignore[call-overload]
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls
