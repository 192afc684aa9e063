"""`/v1` over real HTTP with OpenAI's own client: Daphne, Postgres, Valkey, and a worker that follows a script."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import redis as redis_py
from django.conf import settings
from django.db import connection
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.chat.models import Generation
from inference.protocol import Role, encode
from tests.web.api_server import serving
from tests.web.api_worker import CONTEXT_TOKENS, MODEL, ScriptedWorker, wait_until

MAX_ACTIVE = 2
MAX_COMPLETION = 50


@pytest.fixture(scope="module")
def base_url(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with (
        django_db_blocker.unblock(),
        serving(
            connection.settings_dict["NAME"],
            MAX_ACTIVE_PER_KEY=str(MAX_ACTIVE),
            MAX_COMPLETION_TOKENS=str(MAX_COMPLETION),
            LOG_LEVEL="DEBUG",
        ) as url,
    ):
        yield url


@pytest.fixture
def user(transactional_db: None) -> User:
    return User.objects.create_user("ada")


@pytest.fixture
def key(user: User) -> str:
    return ApiKey.create(user, "test")[1]


@pytest.fixture
def worker(redis: redis_py.Redis, valkey_url: str, transactional_db: None) -> Iterator[ScriptedWorker]:
    config = dataclasses.replace(settings.INFERENCE, lease_seconds=60.0)
    with ScriptedWorker(valkey_url, config) as worker:
        yield worker


@pytest.fixture
def client(base_url: str, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def http(base_url: str, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url, headers={"Authorization": f"Bearer {key}"}, timeout=20) as client:
        yield client


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": ask(text), **fields}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def events(text: str) -> list[str]:
    """The data of each event; comments are none."""
    return [part[len("data: ") :] for part in text.split("\n\n") if part.startswith("data: ")]


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


# -- refusals


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 9}, "temperature"),
        ({"max_tokens": MAX_COMPLETION + 1}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"258": 1}}, "logit_bias"),  # the scripted model's last token is 257
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": schema_format({"not": {}})}, "response_format"),
        ({"response_format": schema_format({"type": "string", "pattern": "("})}, "response_format"),
        ({"response_format": schema_format({"enum": ["x" * 1000] * 101})}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f f"}}]}, "tools[0]"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_offered_is_a_400_also_for_a_stream(
    client: openai.OpenAI, worker: ScriptedWorker, fields: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ask("hello"), stream=stream, **fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert not Generation.objects.exists()


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ask("x" * 1_000), stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT_TOKENS)[:2] in caught.value.message
    assert "1,0" in caught.value.message
    assert not Generation.objects.exists()


def test_an_unknown_model_is_not_found(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-17", messages=ask("hello"))
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_no_live_worker_is_a_503_that_says_when_to_come_again(http: httpx.Client, redis: redis_py.Redis) -> None:
    response = http.post("/v1/chat/completions", json=body("hello"))
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["code"] == "no_worker"
    assert not Generation.objects.exists()


def test_too_many_at_once_is_a_429_that_says_when_to_come_again(
    client: openai.OpenAI, worker: ScriptedWorker, user: User
) -> None:
    for _ in range(MAX_ACTIVE):
        Generation.objects.create(user=user, source="api", model=MODEL)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=MODEL, messages=ask("hello"))
    assert int(caught.value.response.headers["retry-after"]) > 0
    assert Generation.objects.count() == MAX_ACTIVE


def test_answers_of_the_chat_do_not_count_against_the_api(
    client: openai.OpenAI, worker: ScriptedWorker, user: User
) -> None:
    for _ in range(MAX_ACTIVE):
        Generation.objects.create(user=user, source="chat", model=MODEL)
    client.chat.completions.create(model=MODEL, messages=ask("hello"))


def test_a_closed_loop_as_wide_as_the_limit_is_never_refused(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    """A seat is free again when the response has ended, not some time after."""

    def loop(_: int) -> None:
        for _ in range(10):
            client.chat.completions.create(model=MODEL, messages=ask("hello"))
            list(client.chat.completions.create(model=MODEL, messages=ask("hello"), stream=True))

    with ThreadPoolExecutor(MAX_ACTIVE) as threads:
        list(threads.map(loop, range(MAX_ACTIVE)))


def test_a_broken_answer_is_an_error_and_not_worth_repeating(http: httpx.Client, worker: ScriptedWorker) -> None:
    response = http.post("/v1/chat/completions", json=body("break"))
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "The model broke.",
        "type": "server_error",
        "param": None,
        "code": "bad_logits",
    }
    assert response.headers["x-should-retry"] == "false"


def test_a_broken_stream_ends_with_the_error_and_without_done(client: openai.OpenAI, worker: ScriptedWorker) -> None:
    texts = []
    stream = client.chat.completions.create(model=MODEL, messages=ask("break"), stream=True)
    with pytest.raises(openai.APIError, match="The model broke"):
        texts.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(texts) == "Half an ans"


def test_a_lost_answer_may_be_asked_for_again(http: httpx.Client, worker: ScriptedWorker) -> None:
    response = http.post("/v1/chat/completions", json=body("lose"))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "worker_lost"
    assert int(response.headers["retry-after"]) > 0
    streamed = events(http.post("/v1/chat/completions", json=body("lose", stream=True)).text)
    assert [json.loads(item)["error"]["code"] for item in streamed] == ["worker_lost"]


# -- leaving and stopping


def test_a_client_that_leaves_a_stream_stops_the_answer(http: httpx.Client, worker: ScriptedWorker) -> None:
    with http.stream("POST", "/v1/chat/completions", json=body("hold", stream=True)) as response:
        for line in response.iter_lines():
            if "One moment" in line:
                break
    wait_until(lambda: len(worker.stopped) == 1, seconds=3)
    wait_until(lambda: Generation.objects.get().status == "stopped")
    assert worker.stopped == [Generation.objects.get().pk]


def test_a_client_that_gives_up_waiting_stops_the_answer(http: httpx.Client, worker: ScriptedWorker) -> None:
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json=body("wait"), timeout=1.0)
    wait_until(lambda: Generation.objects.get().status == "stopped", seconds=5)
    assert worker.stopped == [Generation.objects.get().pk]


def test_leaving_stops_nobody_elses_answer(http: httpx.Client, worker: ScriptedWorker) -> None:
    with http.stream("POST", "/v1/chat/completions", json=body("hold", stream=True)) as stays:
        lines = stays.iter_lines()
        next(line for line in lines if "One moment" in line)
        with http.stream("POST", "/v1/chat/completions", json=body("hold", stream=True)) as leaves:
            next(line for line in leaves.iter_lines() if "One moment" in line)
        wait_until(lambda: Generation.objects.filter(status="stopped").count() == 1)
        assert [Generation.objects.get(status="stopped").pk] == worker.stopped
        assert Generation.objects.get(status="active")


def test_an_answer_stopped_by_an_operator_is_an_error_in_the_stream(
    http: httpx.Client, worker: ScriptedWorker, user: User
) -> None:
    from chatsite.chat import actions

    with http.stream("POST", "/v1/chat/completions", json=body("hold", stream=True)) as response:
        lines = response.iter_lines()
        next(line for line in lines if "One moment" in line)
        actions.stop(user, Generation.objects.get())
        rest = [line for line in lines if line.startswith("data: ")]
    assert json.loads(rest[-1][len("data: ") :])["error"]["code"] == "cancelled"


# -- keys


def test_a_wrong_key_is_an_authentication_error(base_url: str, transactional_db: None) -> None:
    with (
        openai.OpenAI(base_url=f"{base_url}/v1", api_key="sf_nonsense", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic abc", "Bearer nothing", "Bearer sf_\x7f"])
def test_every_route_asks_for_a_key(base_url: str, transactional_db: None, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("GET", "models"), ("GET", "models/x"), ("POST", "chat/completions")):
        response = httpx.request(method, f"{base_url}/v1/{path}", headers=headers)
        assert response.status_code == 401, (method, path)
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("fault", ["revoked", "expired", "inactive"])
def test_a_key_that_no_longer_counts_is_refused(http: httpx.Client, user: User, key: str, fault: str) -> None:
    assert http.get("/v1/models").status_code == 200
    if fault == "revoked":
        ApiKey.objects.update(revoked_at=timezone.now())
    elif fault == "expired":
        ApiKey.objects.update(expires_at=timezone.now())
    else:
        User.objects.update(is_active=False)
    assert http.get("/v1/models").status_code == 401


def test_use_of_a_key_is_noted_at_most_once_a_minute(http: httpx.Client, key: str) -> None:
    http.get("/v1/models")
    first = ApiKey.objects.get().last_used_at
    assert first is not None
    http.get("/v1/models")
    assert ApiKey.objects.get().last_used_at == first
    long_ago = timezone.now() - datetime.timedelta(minutes=2)
    ApiKey.objects.update(last_used_at=long_ago)
    http.get("/v1/models")
    assert ApiKey.objects.get().last_used_at > long_ago


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
