"""A whole server behind an OpenAI-compatible address: ours, llama.cpp's, vLLM's.

Closed loop, or open loop with Poisson arrivals when a rate is given: then nothing holds a request back, however many
are under way. Whatever a server does wrong makes that request a failed one, with the reason, and the run goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import msgspec

from inference.bench.measurement import Goodput, RequestTimes, peak_in_flight, summarize
from inference.bench.workload import Conversation, Turn, Workload
from inference.errors import ConfigError
from inference.messages.generation import SamplingParams

TIMEOUT_SECONDS = 600.0


class ServeBench:
    """Talks to `<base_url>/chat/completions`, or with `is_raw` to `<base_url>/completions`, streaming."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        *,
        model: str = "",
        sampling: SamplingParams,
        is_raw: bool = False,
        ignore_eos: bool = True,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
        self._is_raw = is_raw
        self._ignore_eos = ignore_eos
        self._sampling = sampling
        self._model = model or self._first_model()

    def run(
        self,
        workload: Workload,
        *,
        concurrency: int,
        request_rate: float = 0.0,
        goodput: Goodput | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """The row of results of one workload: `concurrency` conversations at once, or `request_rate` a second."""
        times, took = asyncio.run(self._run(workload, concurrency, request_rate, on_done))
        return summarize(
            times,
            took,
            goodput,
            concurrency=peak_in_flight(times) if request_rate else concurrency,
            request_rate=request_rate or "inf",
            workload=workload.kind,
        )

    def template_tokens(self) -> int:
        """How many tokens a prompt has beyond its words, as the server counts them; 0 when it does not say.

        Raises ConfigError: the server refused the question.
        """

        async def ask() -> RequestTimes:
            async with self._client() as client:
                conversation = Conversation(0, (Turn(" ".join(["time"] * 16), 1),))
                return await anext(self._converse(client, conversation))

        times = asyncio.run(ask())
        if times.error:
            raise ConfigError(f"{self._base_url} does not answer: {times.error}")
        return max(0, times.prompt_tokens - 16)

    def _client(self) -> httpx.AsyncClient:
        # A connection each: one that is kept may be closed by the server just as the next request goes out.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(headers=self._headers, limits=limits, timeout=TIMEOUT_SECONDS)

    async def _run(
        self, workload: Workload, concurrency: int, request_rate: float, on_done: Callable[[], None]
    ) -> tuple[list[RequestTimes], float]:
        found: list[RequestTimes] = []
        conversations = workload.conversations()

        async def follow(client: httpx.AsyncClient, some: Iterator[Conversation]) -> None:
            for conversation in some:
                async for times in self._converse(client, conversation):
                    found.append(times)
                    on_done()

        async with self._client() as client:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                if request_rate:
                    for conversation, at in zip(conversations, workload.arrivals(request_rate)):
                        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
                        group.create_task(follow(client, iter((conversation,))))
                else:
                    for _ in range(concurrency):
                        group.create_task(follow(client, conversations))
            return found, time.perf_counter() - began

    async def _converse(self, client: httpx.AsyncClient, conversation: Conversation) -> AsyncIterator[RequestTimes]:
        """Send turn after turn, each with the answers before it, until one fails."""
        messages: list[dict[str, str]] = []
        if conversation.system:
            messages.append({"role": "system", "content": conversation.system})
        history_tokens = 0
        for number, turn in enumerate(conversation.turns, 1):
            messages.append({"role": "user", "content": turn.text})
            answer = _Answer(RequestTimes(sent_at=time.perf_counter(), turn=number, history_tokens=history_tokens))
            await self._send(client, self._body(conversation, messages, number), answer)
            yield answer.times
            if answer.times.error:
                return
            messages.append({"role": "assistant", "content": "".join(answer.content)})
            history_tokens = answer.times.prompt_tokens + answer.times.output_tokens

    async def _send(self, client: httpx.AsyncClient, body: dict[str, Any], answer: _Answer) -> None:
        url = self._base_url + ("/completions" if self._is_raw else "/chat/completions")
        try:
            async with client.stream("POST", url, json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread())[:200].decode("utf-8", "replace")
                    answer.fail(f"{response.status_code}: {text}")
                else:
                    rest = b""
                    async for chunk in response.aiter_raw():
                        *lines, rest = (rest + chunk).split(b"\n")
                        at = time.perf_counter()
                        for line in lines:
                            answer.take(line, at)
        except httpx.HTTPError as error:
            answer.fail(f"{type(error).__name__}: {error}")
        answer.end()

    def _body(self, conversation: Conversation, messages: list[dict[str, str]], turn: int) -> dict[str, Any]:
        sampling = self._sampling
        body: dict[str, Any] = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": conversation.number * 1000 + turn,
            "max_tokens": conversation.turns[turn - 1].max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._ignore_eos:
            body["ignore_eos"] = True
        if self._is_raw:
            return body | {"prompt": " ".join(message["content"] for message in messages)}
        return body | {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}

    def _first_model(self) -> str:
        try:
            reply = httpx.get(self._base_url + "/models", headers=self._headers, timeout=30.0)
            return str(reply.raise_for_status().json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{self._base_url}/models names no model ({error}): give --model.") from error


class _Answer:
    """What came of one streamed answer."""

    def __init__(self, times: RequestTimes) -> None:
        self.times = times
        self.content: list[str] = []
        self._is_whole = False

    def take(self, line: bytes, at: float) -> None:
        """One line of the event stream, without its end."""
        field, _, value = line.strip().partition(b":")
        value = value.strip()
        if field == b"error":  # llama.cpp's server has said it so
            self.fail(value.decode("utf-8", "replace"))
        elif field == b"data" and value == b"[DONE]":
            self._is_whole = True
        elif field == b"data":
            try:
                self._note(msgspec.json.decode(value), at)
            except (msgspec.DecodeError, AttributeError, LookupError, TypeError) as error:
                self.fail(f"a piece that is none: {type(error).__name__}: {value[:100]!r}")

    def fail(self, reason: str) -> None:
        self.times.error = self.times.error or reason

    def end(self) -> None:
        times = self.times
        times.ended_at = time.perf_counter()
        if not self._is_whole:
            self.fail("the stream ended before the answer did")
        times.output_tokens = times.output_tokens or len(times.piece_times)

    def _note(self, piece: dict[str, Any], at: float) -> None:
        error = piece.get("error")
        if error:
            self.fail(str(error.get("message") or error) if isinstance(error, dict) else str(error))
        for choice in piece.get("choices") or ():
            delta = choice.get("delta") or {}
            content = delta.get("content") or choice.get("text")
            if content:
                self.content.append(content)
            if content or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"):
                self.times.piece_times.append(at)
            if choice.get("finish_reason"):
                self._is_whole = True
        usage = piece.get("usage")
        if usage:
            self.times.prompt_tokens = usage["prompt_tokens"]
            self.times.output_tokens = usage["completion_tokens"]
            self.times.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
