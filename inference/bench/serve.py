"""A whole server behind an OpenAI-compatible address: ours, llama.cpp's, vLLM's. Closed loop, or open loop with Poisson
arrivals when a rate is given."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

import httpx

from inference.bench.measurement import RequestTimes, summarize
from inference.bench.workload import Workload
from inference.protocol import GenerationRequest


class ServeBench:
    """Talks to `<base_url>/chat/completions`, streaming, with usage in the last piece."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def run(
        self, workload: Workload, concurrency: int, request_rate: float, on_done: Callable[[], None]
    ) -> dict[str, Any]:
        """Send all requests, at most `concurrency` at once; `request_rate` per second, or as they end when it is 0."""
        return asyncio.run(self._run(workload, concurrency, request_rate, on_done))

    async def _run(
        self, workload: Workload, concurrency: int, request_rate: float, on_done: Callable[[], None]
    ) -> dict[str, Any]:
        arrivals = random.Random(workload.seed)
        seats = asyncio.Semaphore(concurrency)
        limits = httpx.Limits(max_connections=concurrency)
        async with httpx.AsyncClient(headers=self._headers, limits=limits, timeout=600.0) as client:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                tasks = []
                for request in workload.requests():
                    if request_rate:
                        await asyncio.sleep(arrivals.expovariate(request_rate))
                    await seats.acquire()
                    tasks.append(group.create_task(self._send(client, request)))
                    tasks[-1].add_done_callback(lambda _: seats.release())
                    tasks[-1].add_done_callback(lambda _: on_done())
            took = time.perf_counter() - began
        return summarize([task.result() for task in tasks], took, concurrency=concurrency, request_rate=request_rate)

    async def _send(self, client: httpx.AsyncClient, request: GenerationRequest) -> RequestTimes:
        times = RequestTimes(sent_at=time.perf_counter())
        try:
            async with client.stream("POST", self._url, json=_body(request)) as response:
                if response.status_code != 200:
                    times.error = f"{response.status_code}: {(await response.aread())[:200]!r}"
                    return times
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        _note(times, json.loads(line[6:]))
        except httpx.HTTPError as error:
            times.error = f"{type(error).__name__}: {error}"
        times.ended_at = time.perf_counter()
        times.output_tokens = times.output_tokens or len(times.piece_times)
        return times


def _body(request: GenerationRequest) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "model": request.model,
        "messages": [{"role": m.role.value, "content": m.content} for m in request.messages],
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,  # servers that know it give every answer its full length; the others ignore it
    }


def _note(times: RequestTimes, piece: dict[str, Any]) -> None:
    if "error" in piece:
        times.error = str(piece["error"].get("message", piece["error"]))
    for choice in piece.get("choices", ()):
        delta = choice.get("delta", {})
        if delta.get("content") or delta.get("reasoning_content"):
            times.piece_times.append(time.perf_counter())
    usage = piece.get("usage")
    if usage:
        times.prompt_tokens = usage["prompt_tokens"]
        times.output_tokens = usage["completion_tokens"]
        times.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
