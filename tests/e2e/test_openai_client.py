"""The official `openai` client against a running site, unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

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


def test_what_all_prompts_begin_with_is_read_once(client: openai.OpenAI) -> None:
    for text in ("What is the capital of Portugal?", "Why is the sky blue?"):
        asked = client.chat.completions.create(model=MODEL, messages=question(text), max_tokens=4)  # type: ignore[call-overload]
    assert asked.usage.prompt_tokens_details.cached_tokens >= 20
