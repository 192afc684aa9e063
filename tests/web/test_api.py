"""`/v1` over real HTTP with OpenAI's own client: answers whole and streamed, models, paths, sizes."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from chatsite.accounts.models import User
from chatsite.chat.models import Generation
from inference.messages.generation import Role
from inference.messages.serialization import encode
from tests.web.api_client import (  # noqa: F401  (fixtures)
    MAX_COMPLETION,
    ask,
    base_url,
    body,
    client,
    events,
    http,
    key,
    schema_format,
    user,
    worker,
)
from tests.web.api_worker import MODEL, ScriptedWorker

# -- answers


def test_an_answer_in_one_piece(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ask("hello"))
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello, wörld 🦊")
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (11, 7, 18)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


def test_a_stream_without_usage_has_the_chunks_of_openai(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=ask("hello"), stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello, wörld 🦊"
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in c.model_fields_set for c in chunks)
    assert len({c.id for c in chunks}) == 1
    assert {c.object for c in chunks} == {"chat.completion.chunk"}


def test_usage_comes_once_in_a_last_chunk_without_choices_when_asked_for(
    client: openai.OpenAI, worker: ScriptedWorker
) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=ask("hello"), stream=True, stream_options={"include_usage": True}
        )
    )
    assert all(c.usage is None and c.choices for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 18


def test_the_bytes_of_a_stream(http: httpx.Client, worker: ScriptedWorker) -> None:
    response = http.post("/v1/chat/completions", json=body("hello", stream=True))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    data = events(response.text)
    assert data[-1] == "[DONE]"
    chunks = [json.loads(item) for item in data[:-1]]
    assert chunks[0]["choices"] == [
        {"delta": {"role": "assistant", "content": ""}, "index": 0, "logprobs": None, "finish_reason": None}
    ]
    assert chunks[-1]["choices"] == [{"delta": {}, "index": 0, "logprobs": None, "finish_reason": "stop"}]


def test_thoughts_are_kept_apart_from_the_answer(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ask("think"))
    assert whole.choices[0].message.content == "42"
    assert whole.choices[0].message.model_extra == {"reasoning_content": "Let me see."}
    chunks = list(client.chat.completions.create(model=MODEL, messages=ask("think"), stream=True))
    thoughts = [(c.choices[0].delta.model_extra or {}).get("reasoning_content", "") for c in chunks]
    assert "".join(thoughts) == "Let me see."
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "42"


def test_an_answer_cut_by_its_limit_says_length(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    assert client.chat.completions.create(model=MODEL, messages=ask("long")).choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_is_an_answer(client: openai.OpenAI, worker: ScriptedWorker, stream: bool) -> None:
    if stream:
        chunks = list(client.chat.completions.create(model=MODEL, messages=ask("nothing"), stream=True))
        assert [c.choices[0].finish_reason for c in chunks] == [None, "stop"]
    else:
        assert client.chat.completions.create(model=MODEL, messages=ask("nothing")).choices[0].message.content == ""


def test_the_request_reaches_the_worker_as_asked(client: openai.OpenAI, worker: ScriptedWorker, user: User) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be kind."}, *ask("hello")],
        temperature=0.5,
        seed=7,
        stop=["END"],
        max_completion_tokens=20,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}, "top_k": 5, "unheard_of": {"x": 1}},
    )
    (request,) = worker.requests
    assert [m.role for m in request.messages] == [Role.SYSTEM, Role.USER]
    assert request.user_key == str(user.pk)
    assert request.thinking is False
    assert request.prompt_tokens > len("Be kind.hello")
    sampling = request.sampling
    assert (sampling.temperature, sampling.seed, sampling.stop, sampling.max_tokens, sampling.top_k) == (
        0.5,
        7,
        ("END",),
        20,
        5,
    )


def test_how_tokens_are_to_be_chosen_reaches_the_worker_as_asked(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=ask("hello"),
        logprobs=True,
        top_logprobs=3,
        logit_bias={"257": -100, "65": 1},  # type: ignore[dict-item]
        response_format=schema_format({"type": "object"}),  # type: ignore[arg-type]
        extra_body={
            "typical_p": 0.5,
            "dry_multiplier": 0.8,
            "dry_base": 2,
            "dry_allowed_length": 3,
            "ignore_eos": True,
        },
    )
    (request,) = worker.requests
    sampling = request.sampling
    assert (sampling.logprobs, sampling.logit_bias, sampling.json_schema) == (
        3,
        {257: -100, 65: 1},
        '{"type":"object"}',
    )
    assert (sampling.typical_p, sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length) == (
        0.5,
        0.8,
        2.0,
        3,
    )
    assert sampling.ignore_eos
    assert request.thinking is False


def test_logprobs_of_a_whole_answer_are_those_of_its_content(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ask("weigh"), logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert choice.message.content == "Fox 🦊"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    first, half, other_half = choice.logprobs.content
    assert (first.token, first.logprob, bytes(first.bytes or [])) == ("Fox ", -0.25, b"Fox ")
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [("Fox ", -0.25), ("Dog", -1.5)]
    assert bytes([*(half.bytes or []), *(other_half.bytes or [])]).decode() == "🦊"
    assert half.top_logprobs == []
    assert other_half.logprob == -17.25


def test_logprobs_are_streamed_with_their_content(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    asked = {"model": MODEL, "messages": ask("weigh"), "stream": True, "logprobs": True}
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked)]
    told = [(c.delta.content, [t.token for t in c.logprobs.content or []]) for c in chunks if c.logprobs]
    assert told == [("Fox ", ["Fox "]), ("🦊", ["\ufffd", "\ufffd\ufffd"])]


def test_without_being_asked_for_there_are_no_logprobs(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    assert client.chat.completions.create(model=MODEL, messages=ask("weigh")).choices[0].logprobs is None
    empty = client.chat.completions.create(model=MODEL, messages=ask("nothing"), logprobs=True).choices[0].logprobs
    assert empty is not None
    assert empty.content == []


def test_only_usage_is_kept(client: openai.OpenAI, worker: ScriptedWorker, user: User) -> None:
    client.chat.completions.create(model=MODEL, messages=ask("hello"))
    row = Generation.objects.get()
    assert (row.user, row.source, row.status, row.message) == (user, "api", "done", None)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (11, 7, 4)
    assert row.request == ""


# -- models, paths, methods, sizes


def test_models_are_those_that_live_workers_serve(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "smolfleet")
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-17")


def test_other_methods_and_paths_are_refused_in_json(http: httpx.Client) -> None:
    for method, path, allowed in (
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models/x", "GET"),
        ("POST", "/v1/models", "GET"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
    ):
        response = http.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
        assert response.json()["error"]["code"] == "method_not_allowed"
        assert "access-control-allow-origin" not in response.headers
    for path in ("/v1", "/v1/", "/v1/embeddings", "/v1/chat/completions/"):
        response = http.post(path, json={})
        assert response.status_code == 404, path
        assert response.json()["error"]["code"] == "unknown_url"


def test_a_body_over_the_cap_is_refused_and_one_at_it_is_read(http: httpx.Client) -> None:
    cap = 4 * 1024 * 1024
    assert http.post("/v1/chat/completions", content=b"x" * (cap + 1)).status_code == 413
    assert http.post("/v1/chat/completions", content=b"x" * cap).status_code == 400


def test_answers_carry_the_headers_that_middleware_gives_pages(http: httpx.Client) -> None:
    headers = http.get("/v1/models").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]


def test_a_stored_request_holds_what_postgres_cannot_as_escapes(http: httpx.Client, worker: ScriptedWorker) -> None:
    """NUL in a prompt must not fail the insert."""
    assert http.post("/v1/chat/completions", json=body("a\x00b")).status_code == 200
    assert b"\x00" not in encode(worker.requests[0])


# -- what peers answer is answered here


@pytest.mark.parametrize("stream", [False, True])
def test_messages_in_the_orders_that_clients_send_are_answered(
    client: openai.OpenAI, worker: ScriptedWorker, stream: bool
) -> None:
    for roles in ("ssu", "uasu", "ua", "sdu", "uu", "su", "us", "s", "a", "uaa", "auu"):
        names = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
        turns: Any = [{"role": names[role], "content": "hello"} for role in roles]
        answer = client.chat.completions.create(model=MODEL, messages=turns, stream=stream)
        choices = [chunk.choices[0] for chunk in answer] if stream else list(answer.choices)
        text = "".join((choice.delta if stream else choice.message).content or "" for choice in choices)
        assert (text, choices[-1].finish_reason) == ("Hello, wörld 🦊", "stop")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_beyond_the_context_is_clamped(client: openai.OpenAI, worker: ScriptedWorker, field: str) -> None:
    asked: Any = {field: 32_000}
    assert client.chat.completions.create(model=MODEL, messages=ask("long"), **asked).choices[0].finish_reason == (
        "length"
    )
    assert worker.requests[-1].sampling.max_tokens == MAX_COMPLETION


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_followed_as_far_as_can_be_and_the_rest_is_said(
    http: httpx.Client, worker: ScriptedWorker, stream: bool
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "contains": {"const": 1}}
    form = schema_format(schema)
    response = http.post("/v1/chat/completions", json=body("hello", response_format=form, stream=stream))
    assert response.status_code == 400, "strict"
    assert "uniqueItems" in response.json()["error"]["message"]
    form["json_schema"]["strict"] = False
    response = http.post("/v1/chat/completions", json=body("hello", response_format=form, stream=stream))
    assert response.status_code == 200
    said = response.headers["x-smolfleet-warning"]
    assert "uniqueItems" in said and "contains" in said
    if not stream:
        assert response.json()["warnings"] == [said]
    assert json.loads(worker.requests[-1].sampling.json_schema or "") == {"type": "array", "items": {"type": "integer"}}
    plain = http.post("/v1/chat/completions", json=body("hello", stream=stream))
    assert "x-smolfleet-warning" not in plain.headers
    assert "warnings" not in plain.text


def test_turns_that_the_context_has_no_room_for_are_told_of(http: httpx.Client, worker: ScriptedWorker) -> None:
    turns = [{"role": role, "content": "x" * 60} for _ in range(4) for role in ("user", "assistant")]
    response = http.post("/v1/chat/completions", json={**body("hello"), "messages": [*turns, *ask("hello")]})
    assert response.json()["warnings"] == [response.headers["x-smolfleet-warning"]]
    assert "oldest" in response.headers["x-smolfleet-warning"]
