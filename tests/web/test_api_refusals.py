"""What `/v1` refuses and how its answers end badly: the status, the words, and when to come again."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import redis as redis_py

from chatsite.accounts.models import User
from chatsite.chat.models import Generation
from tests.web.api_client import (  # noqa: F401  (fixtures)
    MAX_ACTIVE,
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
from tests.web.api_worker import CONTEXT_TOKENS, MODEL, ScriptedWorker, wait_until

# -- refusals


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"temperature": 9}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"extra_body": {"thinking": {"type": "perhaps"}}}, "thinking.type"),
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
    assert f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your messages resulted in 10" in (
        caught.value.message
    )
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
    from chatsite.chat.actions import send

    with http.stream("POST", "/v1/chat/completions", json=body("hold", stream=True)) as response:
        lines = response.iter_lines()
        next(line for line in lines if "One moment" in line)
        send.stop(user, Generation.objects.get())
        rest = [line for line in lines if line.startswith("data: ")]
    assert json.loads(rest[-1][len("data: ") :])["error"]["code"] == "cancelled"
