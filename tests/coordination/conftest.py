"""A waiting room, leases, a log and a client over the run's Valkey, and requests to put into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis as redis_py

from inference.client import InferenceClient
from inference.config import InferenceConfig, load
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.registry import Registry
from inference.coordination.waiting_room import WaitingRoom
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.generation import (
    ChatMessage,
    Delta,
    Event,
    EventKind,
    Finish,
    FinishReason,
    GenerationRequest,
    Role,
    Usage,
)

MODEL = "tiny"

RequestMaker = Callable[..., GenerationRequest]


def make_request(user: str = "ann", **fields: Any) -> GenerationRequest:
    defaults: dict[str, Any] = {
        "id": uuid4(),
        "model": MODEL,
        "user_key": user,
        "messages": (ChatMessage(role=Role.USER, content="Why is the sky blue?"),),
        "conversation_key": f"conversation-{uuid4()}",
        "prompt_tokens": 100,
    }
    return GenerationRequest(**defaults | fields)


def delta(text: str, seq: int = 0) -> Event:
    return Event(kind=EventKind.DELTA, seq=seq, deltas=(Delta("content", text),), tokens=(1, 2))


def finish(prompt_tokens: int = 100, completion_tokens: int = 50, reason: FinishReason = FinishReason.STOP) -> Finish:
    return Finish(reason=reason, usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens))


def worker_card(name: str, **fields: Any) -> WorkerCard:
    model = ModelCard(name=MODEL, title="Tiny", architecture="smollm3", context_tokens=4096, prompt_kit="0" * 64)
    defaults: dict[str, Any] = {
        "name": name,
        "model": model,
        "num_slots": 4,
        "num_free_slots": 0,
        "device": "cpu",
        "started_at": 1.0,
        "seen_at": 1.0,
    }
    return WorkerCard(**defaults | fields)


@pytest.fixture
def config(valkey_url: str) -> InferenceConfig:
    return dataclasses.replace(load({}), redis_url=valkey_url)


@pytest.fixture
def room(redis: redis_py.Redis, config: InferenceConfig) -> WaitingRoom:
    return WaitingRoom(redis, config)


@pytest.fixture
def leases(redis: redis_py.Redis, config: InferenceConfig) -> Leases:
    return Leases(redis, config)


@pytest.fixture
def log(redis: redis_py.Redis, config: InferenceConfig) -> EventLog:
    return EventLog(redis, config)


@pytest.fixture
def registry(redis: redis_py.Redis) -> Registry:
    return Registry(redis)


@pytest.fixture
def client(redis: redis_py.Redis, config: InferenceConfig) -> Iterator[InferenceClient]:
    client = InferenceClient(config)
    yield client
    client.close()
